// The modes of `tune`, each a command of its own: it reads its options, and returns the exit status.
#pragma once

#include <vector>

#include "autotune/commands/options.h"
#include "autotune/evidence/exchange.h"

namespace outgrad::autotune {

int cpu_command(const Words& words);       // `tune`: searches on this machine's CPU
int gpu_command(const Words& words);       // `--device cuda:N`, `--device cuda:all`: on GPUs
// `--device sm_XX`: ranks by predictions for a GPU that is not there
int predict_command(const Words& words);
int replay_command(const Words& words);    // `--device replay:FILE`: searches a recording, or exports it
// `--device replay:FILE --ranking sm_XX`: compares predictions with a recording
int ranking_command(const Words& words);
int record_command(const Words& words);    // `--record DIR`: times every point of a CPU's space
int merge_command(const Words& words);     // `--merge FILE...`: databases of several runs as one
int defaults_command(const Words& words);  // `--defaults FILE...`: schedules for devices that nobody tuned

// What "--merge" or "a replay" reads its options as.
Mode tune_mode(const char* name);

// --device replay:FILE, and --kernel and --format of a database that holds several problems.
void add_recording(CLI::App& app, std::string& device, std::string& kernel, std::string& format);
std::string recorded_path(const std::string& device);  // FILE
Recording recording_of(const std::string& device, const std::string& kernel, const std::string& format);

// The problems whose kernels have a space on GPUs; a line says which are left out. Throws SpecError where
// none has.
std::vector<Problem> with_space_on_gpus(std::vector<Problem> problems);

}  // namespace outgrad::autotune
