// What --publish does at the end of a command.
#pragma once

#include <string>
#include <vector>

#include "autotune/evidence/merge.h"

namespace outgrad::autotune {

// Publishes the records, or those of all databases of the folder `out`, and says what of it changed on
// stderr. Throws as publish().
void publish_records(const std::vector<Record>& records, Accuracy accuracy);
void publish_folder(const std::string& out, Accuracy accuracy);

}  // namespace outgrad::autotune
