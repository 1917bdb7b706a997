# Ordinary comments become Doxygen's: that at the head of a file, those before a declaration, and those at the
# end of a line. A line that separates sections says nothing of what follows it.
/^\/[*/] -{3}/d
1s,^// ,/// @file\n/// ,
1s,^/\* (.*),/** @file\n * \1,
s,^( *)/\* ,\1/** ,
s,([;\,]) +/\* (.*\*/)$,\1 /**< \2,
s,^( *)//( |$),\1///\2,
s,([;\,]) +// ,\1 ///< ,
/^ *\/\/\/|^ \*|\/\*\*/s,<([^ <=>]*>),\\<\1,g
s,::inline OUTGRAD_ABI,,
