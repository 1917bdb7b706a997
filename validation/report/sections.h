// The report's sections, each made from the results that it needs, and the words that they share.
#pragma once

#include <string>

#include "validation/report/page.h"
#include "validation/report/requirements.h"
#include "validation/report/results.h"

namespace outgrad::validation {

// ---- summary.cpp: what a reader takes away
page::Verdict verdict_of(const std::vector<Requirement>& rows);
page::Tiles key_figures(const Results& results);
/// Every requirement on one format, with the formats side by side.
page::Table matrix(const std::vector<Requirement>& rows);
/// Every other requirement: those on norms and on certificates.
page::Table of_all_formats(const std::vector<Requirement>& rows);
/// The requirements of of_all_formats(), followed by what holds and, where there is any, what fails, what is only
/// reported and what was not measured.
std::vector<page::Block> remarks(const std::vector<Requirement>& rows);
/// How many files of each kind the report was made from.
page::Paragraph sources(const Results& results);
page::Section requirements_section(const std::vector<Requirement>& rows);

// ---- curves.cpp: errors over x and y
page::Section curves_section(const Results& results);

// ---- errors.cpp: errors kept apart, T against O, how often, the forward
page::Section limits_section(const Results& results);
page::Section often_section(const Results& results);
page::Section errors_section(const Results& results);
page::Section forward_section(const Results& results);

// ---- coverage.cpp: what was swept and counted
page::Section coverage_section(const Results& results);

// ---- choice.cpp: fronts of cost and error, coefficients
page::Section pareto_section(const Results& results);
page::Section coefficients_section(const Results& results);

// ---- norms.cpp: LayerNorm and RMSNorm from the output
page::Section channels_section(const Results& results);
page::Section attack_section(const Results& results);

// ---- others.cpp: published coefficients, the bytes that training keeps, training with them
page::Section others_section(const Results& results);
page::Section ledger_section(const Results& results);
page::Section training_section(const Results& results);

// ---- bits.cpp: what is kept, in how few bits, against the error of the gradient
page::Section bits_section(const Results& results);

// ---- tuning.cpp: this machine's kernels
page::Section tuning_section(const Results& results);

// ---- words
inline constexpr double kXStar = -0.7517915247, kYStar = -0.1699712075;  // the minimum of GELU, where plots and sentences point; no bound uses them

/// Three significant digits, rounded to nearest; only for values that are not bounds.
std::string scientific(double v);
std::string error_text(double bound);
/// A column of words.
page::Column words(const char* name);
page::Tone tone_of(RequirementVerdict verdict);
/// Stands for a value that was not measured, and names the command that measures it.
page::Paragraph nothing(const std::string& what, const std::string& command);
/// Of `many` that share x: "65,536".
std::string grouped(std::int64_t count);

}  // namespace outgrad::validation
