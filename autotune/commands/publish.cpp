// The sources that are present, of the CPU's kernels and of those that this program carries for GPUs.
#include "autotune/commands/publish.h"

#include <cstdio>
#include <iterator>
#include <string>

#include "autotune/gpu/offline.h"
#include "autotune/space/sources.h"

namespace outgrad::autotune {

void publish_records(const std::vector<Record>& records, Accuracy accuracy) {
  const std::vector<SourceHashes> present = {hash_sources(source_root()), gpu::hash_of_embedded()};
  for (const Published& file : publish(records, present, published_folder(), accuracy))
    std::fprintf(stderr, "outgrad: published: %s: %zu records of %zu problems, %s%zu bytes%s\n",
                 file.path.c_str(), file.records, file.problems,
                 file.left_out > 0 ? (std::to_string(file.left_out) + " left out, ").c_str() : "", file.bytes,
                 file.changed ? "" : ", as it was");
}

void publish_folder(const std::string& out, Accuracy accuracy) {
  std::vector<Record> records;
  for (const std::string& path : databases_in(out)) {
    Database database = load_database(path);
    std::move(database.records.begin(), database.records.end(), std::back_inserter(records));
  }
  publish_records(records, accuracy);
}

}  // namespace outgrad::autotune
