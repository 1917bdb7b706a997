// fork, a pipe of JSON lines, a deadline.
#include "autotune/measure/isolate.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>

#include "kernels/support/json.h"
#include "kernels/support/process.h"

namespace outgrad::autotune {
namespace {

constexpr int kBodyThrew = 70;  // EX_SOFTWARE: an exit status no kernel is likely to choose

// Parent and child share this clock.
double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Its exit status.
int be_the_child(int descriptor, const std::function<void(const Channel&)>& body,
                 const IsolationLimits& limits) {
  kernels::limit_resource(RLIMIT_CORE, 0);
  if (limits.memory_bytes != IsolationLimits::kNoLimit)
    kernels::limit_resource(RLIMIT_AS, static_cast<rlim_t>(limits.memory_bytes));
  const Channel channel(descriptor);
  try {
    body(channel);
  } catch (const std::exception& error) {
    channel.report({{"exception", error.what()},
                    {"out_of_memory", dynamic_cast<const std::bad_alloc*>(&error) != nullptr}});
    return kBodyThrew;
  }
  channel.report({{"finished", true}});
  return 0;
}

ChildEnd child_end(const kernels::Ending& ending, const std::string& exception, bool out_of_memory,
                   bool finished) {
  ChildEnd end;
  if (ending.signal != 0) {
    end.kind = ChildEnd::Kind::kCrashed;
    end.detail =
        "killed by signal " + std::to_string(ending.signal) + " (" + ::strsignal(ending.signal) + ")";
  } else if (!finished) {  // a kernel that calls exit(0) has not finished either
    end.kind = out_of_memory ? ChildEnd::Kind::kOutOfMemory : ChildEnd::Kind::kCrashed;
    end.detail =
        exception.empty() ? "left the process with exit status " + std::to_string(ending.status) : exception;
  }
  return end;
}

}  // namespace

double Patience::seconds() const {
  return knows_baseline() ? std::clamp(times_ * baseline_, least_, most_) : most_;
}

std::string Patience::text() const {
  char text[96];
  if (const double waited = seconds(); waited < most_ && waited > least_)
    std::snprintf(text, sizeof text, "%.1f s, %.0f times the baseline's %.2g s", waited, times_,
                  baseline_.load());
  else
    std::snprintf(text, sizeof text, "%.1f s", waited);
  return text;
}

void Patience::baseline_took(double seconds) {
  for (double longest = baseline_; seconds > longest && !baseline_.compare_exchange_weak(longest, seconds);) {
  }
}

void Channel::send(nlohmann::json message) const {
  message["at"] = seconds_now();
  const std::string line = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t put = ::write(descriptor_, line.data() + done, line.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) ::_exit(kBodyThrew);  // the parent is gone
    done += static_cast<std::size_t>(put);
  }
}

ChildEnd run_isolated(const std::function<void(const Channel&)>& body,
                      const std::function<void(const nlohmann::json&)>& on_report,
                      const IsolationLimits& limits) {
  kernels::Pipe pipe;
  const pid_t child = kernels::start_copy([&] {
    pipe.from.close();
    return be_the_child(pipe.to.get(), body, limits);
  });
  pipe.to.close();

  std::string pending, exception;
  int last_launched = -1;
  bool finished = false, hung = false, out_of_memory = false;
  double heard = seconds_now(), baseline_began = 0;
  bool running = false;  // what was launched last has said nothing since
  const auto patient_with = [&] { return running && last_launched > 0 ? limits.patience : nullptr; };
  while (true) {
    const double silent = seconds_now() - heard,
                 allowed = patient_with() != nullptr ? patient_with()->seconds() : limits.silence_seconds;
    if (silent >= allowed) {
      hung = true;
      break;
    }
    pollfd waiting{pipe.from.get(), POLLIN, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>((allowed - silent) * 1e3) + 1);
    if (ready <= 0) continue;
    char block[1 << 16];
    const ssize_t got = ::read(pipe.from.get(), block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    heard = seconds_now();
    pending.append(block, static_cast<std::size_t>(got));
    for (std::size_t newline; (newline = pending.find('\n')) != std::string::npos;
         pending.erase(0, newline + 1)) {
      const auto message = kernels::parse_json(std::string_view(pending).substr(0, newline));
      const double at = message["at"].get<double>();
      if (running && last_launched == 0 && limits.patience != nullptr)
        limits.patience->baseline_took(at - baseline_began);
      running = message.contains("launching");
      if (running) {
        last_launched = message["launching"].get<int>();
        baseline_began = at;
      } else if (message["report"].contains("finished")) {
        finished = true;
      } else if (message["report"].contains("exception")) {
        exception = message["report"]["exception"].get<std::string>();
        out_of_memory = message["report"]["out_of_memory"].get<bool>();
      } else {
        on_report(message["report"]);
      }
    }
  }
  if (hung) ::kill(child, SIGKILL);
  pipe.from.close();  // a child that goes on writing ends by it
  const kernels::Ending ending = kernels::wait_for(child);
  ChildEnd end =
      hung ? ChildEnd{ChildEnd::Kind::kHung, -1, {}} : child_end(ending, exception, out_of_memory, finished);
  if (hung)
    end.detail =
        "silent for " +
        (patient_with() != nullptr ? patient_with()->text()
                                   : std::to_string(static_cast<int>(limits.silence_seconds)) + " s") +
        ", killed";
  end.last_launched = last_launched;
  return end;
}

}  // namespace outgrad::autotune
