// "did you mean": the word of a list that a misspelt one was meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace outgrad::kernels {

// The nearest candidate, the first of several; empty where none is near: one letter added, left out, changed,
// or two exchanged (Damerau, CACM 7, 1964) in a word of up to seven, one more for each three letters beyond.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
// "; did you mean 'silu'?", or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace outgrad::kernels
