// What outgrad-gpu has compared: a line on stdout and a row of its JSON file each.
#pragma once

#include <cstdio>
#include <string>

#include "kernels/portable.h"

namespace outgrad::tests::gpu {

struct Report {
  std::string json;  // the rows, separated by commas
  bool equal = true;

  // `difference` is empty where device and host agree.
  void add(const std::string& what, const char* format, kernels::u64 outputs, kernels::u64 hash,
           const std::string& difference) {
    char digits[20];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
    std::printf("%-34s %-4s %12llu outputs  %s  %s\n", what.c_str(), format,
                static_cast<unsigned long long>(outputs), digits,
                difference.empty() ? "equal" : difference.c_str());
    std::fflush(stdout);
    json += (json.empty() ? "" : ",\n    ") + ("{\"what\": \"" + what) + "\", \"format\": \"" + format +
            "\", \"outputs\": " + std::to_string(outputs) + ", \"hash\": \"" + digits +
            "\", \"difference\": \"" + difference + "\"}";
    equal = equal && difference.empty();
  }
};

}  // namespace outgrad::tests::gpu
