// The stand-in for CUDA: a grid's threads as fibers, on one host thread for each launch.
#include "tests/kernels/gpu_stand_in/stand_in.h"

#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "tests/kernels/gpu_stand_in/cuda_runtime.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace outgrad::tests::gpu_stand_in {
namespace {

constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;
constexpr unsigned kBarriers = 16;  // of a block
// The smallest device since sm_80 has these (CUDA C++ Programming Guide, technical specifications: 8.6, 8.9,
// 12.0).
constexpr int kThreadsPerMultiprocessor = 1536;
constexpr int kSharedPerBlock = 48 << 10, kSharedPerBlockOptin = 99 << 10,
              kSharedPerMultiprocessor = 100 << 10;
constexpr std::size_t kStackBytes = 256 << 10;
// not a NaN, so that it does not hide: as f32 -2.67e7, as f16 -15.6, as bf16 -2.66e7
constexpr int kPoison = 0xcb;
constexpr int kSharedPoison = 0xff;  // NaN in every format

std::size_t page_bytes() {
  static const std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

// Accessible memory between two pages that are not.
unsigned char* map_guarded(std::size_t bytes) {
  const std::size_t guard = page_bytes();
  void* const all = mmap(nullptr, bytes + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) throw std::bad_alloc();
  unsigned char* const inner = static_cast<unsigned char*>(all) + guard;
  if (bytes > 0 && mprotect(inner, bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  return inner;
}

void unmap_guarded(unsigned char* inner, std::size_t bytes) {
  munmap(inner - page_bytes(), bytes + 2 * page_bytes());
}

// ---- Guarded arrays, by the address of their first page.

struct Known {
  std::string name;
  const unsigned char *pages, *pages_end, *data, *data_end;
  bool read_only;
};
std::map<const unsigned char*, Known>& known_arrays() {
  static std::map<const unsigned char*, Known> arrays;
  return arrays;
}

// Where an address lies, in words.
std::string whereabouts(const void* address) {
  const auto* const at = static_cast<const unsigned char*>(address);
  for (const auto& [first, array] : known_arrays()) {
    if (at + page_bytes() < array.pages || at >= array.pages_end + page_bytes()) continue;
    const std::string size = " of " + std::to_string(array.data_end - array.data) + " bytes";
    if (at < array.data) return std::to_string(array.data - at) + " bytes before '" + array.name + "'" + size;
    if (at >= array.data_end)
      return std::to_string(at - array.data_end) + " bytes past the end of '" + array.name + "'" + size;
    return "byte " + std::to_string(at - array.data) + " of '" + array.name + "'" + size +
           (array.read_only ? ", which is read-only" : "");
  }
  char text[32];
  std::snprintf(text, sizeof text, "address %p", address);
  return text;
}

// ---- The block that runs.

// A flow of control on a stack of its own. The system's contexts keep the signal mask too, by system calls
// that would be half the time of a grid: where the registers to keep are known, they alone are.
#if defined(__SANITIZE_ADDRESS__)
#define OUTGRAD_STAND_IN_WATCHED
#elif defined(__has_feature)  // clang's way to say it
#if __has_feature(address_sanitizer)
#define OUTGRAD_STAND_IN_WATCHED
#endif
#endif
#if defined(__x86_64__) && !defined(OUTGRAD_STAND_IN_WATCHED)
extern "C" void outgrad_stand_in_switch(void** from, void* to);
asm(R"(
  .text
  .type outgrad_stand_in_switch, @function
outgrad_stand_in_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size outgrad_stand_in_switch, . - outgrad_stand_in_switch
)");

class Flow {
 public:
  void begin(unsigned char* stack, std::size_t bytes, void (*main)()) {
    constexpr int kRegisters = 6;
    void** const end = reinterpret_cast<void**>(stack + bytes);
    end[-1] = nullptr;  // where main would return to; a call leaves the stack like this
    end[-2] = reinterpret_cast<void*>(main);
    top_ = end - 2 - kRegisters;
  }
  void give_way_to(const Flow& other) { outgrad_stand_in_switch(&top_, other.top_); }

 private:
  void* top_ = nullptr;
};
#else
class Flow {
 public:
  // Not inline: getcontext might return twice, for all the compiler knows.
  __attribute__((noinline)) void begin(unsigned char* stack, std::size_t bytes, void (*main)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, main, 0);
  }
  void give_way_to(const Flow& other) { swapcontext(&context_, &other.context_); }

 private:
  ucontext_t context_;
};
#endif

enum class State { ready, barrier, collective, ended };

// Copies that a thread has begun.
struct Copy {
  void* to;
  const void* from;
  std::size_t bytes, batch;
};

struct Thread {
  Flow flow;
  State state;
  const char* waits_in;
  std::source_location where;
  std::deque<Copy> copies;
  std::size_t batches;  // that it has ended
};

struct Collective {
  const char* what;
  std::source_location where;
  unsigned mask, arrived, left;
  std::uint64_t values[kWarp];
};

bool same_place(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

std::string text_of(const std::source_location& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}

struct Block {
  int threads = 0;
  std::unique_ptr<Thread[]> thread{new Thread[kMostThreads]};
  std::vector<int> warps_in_order, lanes_in_order;
  std::vector<unsigned> ready;  // of each warp, its lanes that can go on
  std::vector<std::vector<std::unique_ptr<Collective>>> open;  // of each warp
  struct Barrier {
    unsigned threads = 0;  // that it is for
    std::vector<int> waiting;
    std::source_location where;
  };
  Barrier barriers[kBarriers];  // __syncthreads is the first
  bool any = false;  // of __syncthreads_or
  int ended = 0, running = 0;
};

Block block_state;
Flow scheduler;
bool in_kernel = false;
std::string failure_text;
bool failed = false;
Settings settings_now;
std::int64_t launch_count = 0, occupancy_count = 0;
std::set<CUstream_st*> streams_now;
Run run_now = nullptr;
const void* kernel_now = nullptr;
void** arguments_now = nullptr;
std::map<const void*, int>& dynamic_limits() {
  static std::map<const void*, int> limits;
  return limits;
}

// The block's shared memory: the host thread's part of the program's thread-local storage, and the dynamic
// part.
unsigned char* static_shared = nullptr;
std::size_t static_shared_bytes = 0;
unsigned char* dynamic_shared = nullptr;
std::size_t dynamic_shared_bytes = 0;
constexpr std::size_t kDynamicAddress = std::size_t{1} << 31;  // shared addresses from here on are dynamic

unsigned char* dynamic_pages() {
  static unsigned char* const pages = map_guarded(whole_pages(kSharedPerBlockOptin));
  return pages;
}

unsigned char* stacks() {
  static unsigned char* const all = [] {
    const std::size_t each = kStackBytes + page_bytes();
    void* const memory = mmap(nullptr, kMostThreads * each, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    for (int k = 0; k < kMostThreads; ++k)
      mprotect(static_cast<unsigned char*>(memory) + static_cast<std::size_t>(k) * each, page_bytes(),
               PROT_NONE);
    return static_cast<unsigned char*>(memory);
  }();
  return all;
}

std::string thread_text(int index) {
  return "block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(index);
}

// Ends the launch from within one of its threads.
[[noreturn]] void fail(const std::string& what) {
  failure_text = thread_text(block_state.running) + ": " + what;
  failed = true;
  block_state.thread[block_state.running].flow.give_way_to(scheduler);
  std::abort();
}

void on_signal(int number, siginfo_t* information, void*) {
  if (!in_kernel) {
    signal(number, SIG_DFL);
    raise(number);
    return;
  }
  if (number == SIGSEGV || number == SIGBUS) {
    fail("access to " + whereabouts(information->si_addr));
  } else {
    fail("undefined behaviour: a misaligned access, or an index beyond its array");
  }
}

void give_way() { block_state.thread[block_state.running].flow.give_way_to(scheduler); }

void fiber_main() {
  run_now(kernel_now, arguments_now);
  block_state.thread[block_state.running].state = State::ended;
  ++block_state.ended;
  give_way();
}

void make_ready(int index) {
  block_state.thread[index].state = State::ready;
  block_state.ready[static_cast<std::size_t>(index / kWarp)] |= 1u << (index % kWarp);
}

std::uint64_t mixed(std::uint64_t z) {  // splitmix64
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// 0 .. count - 1 in the order asked for.
template <class Index>
std::vector<Index> in_order(Index count, std::uint64_t salt) {
  std::vector<Index> order(static_cast<std::size_t>(count));
  for (Index k = 0; k < count; ++k) order[static_cast<std::size_t>(k)] = k;
  if (settings_now.order == Order::reversed) std::reverse(order.begin(), order.end());
  if (settings_now.order == Order::shuffled) {
    std::uint64_t state = mixed(settings_now.seed ^ mixed(salt));
    for (std::size_t k = order.size(); k > 1; --k) std::swap(order[k - 1], order[(state = mixed(state)) % k]);
  }
  return order;
}

int next_thread() {
  for (const int warp : block_state.warps_in_order) {
    const unsigned ready = block_state.ready[static_cast<std::size_t>(warp)];
    if (ready == 0) continue;
    for (const int lane : block_state.lanes_in_order) {
      if ((ready >> lane & 1) != 0) return warp * kWarp + lane;
    }
  }
  return -1;
}

// Why nobody can go on.
std::string standstill() {
  std::string text;
  const char* separator = "";
  for (int index = 0; index < block_state.threads; ++index) {  // the first of each kind
    const Thread& own = block_state.thread[index];
    bool known = false;
    for (int earlier = 0; earlier < index && !known; ++earlier) {
      const Thread& other = block_state.thread[earlier];
      known = other.state == own.state && (own.state == State::ended || same_place(other.where, own.where));
    }
    if (known) continue;
    text +=
        separator + thread_text(index) +
        (own.state == State::ended ? " has ended"
                                   : std::string(" waits in ") + own.waits_in + " at " + text_of(own.where));
    separator = "; ";
  }
  return "nobody can go on: " + text;
}

void run_block(std::uint64_t index) {
  Block& block = block_state;
  block.threads = static_cast<int>(blockDim.x);
  blockIdx = {static_cast<unsigned>(index), 0, 0};
  const int warps = (block.threads + kWarp - 1) / kWarp;
  block.warps_in_order = in_order(warps, 2 * index);
  block.lanes_in_order = in_order(kWarp, 2 * index + 1);
  block.ready.assign(static_cast<std::size_t>(warps), 0);
  block.open.clear();
  block.open.resize(static_cast<std::size_t>(warps));
  for (Block::Barrier& barrier : block.barriers) barrier.waiting.clear();
  block.ended = 0;
  std::memset(static_shared, kSharedPoison, static_shared_bytes);
  std::memset(dynamic_shared, kSharedPoison, dynamic_shared_bytes);
  for (int k = 0; k < block.threads; ++k) {
    block.thread[k].flow.begin(
        stacks() + static_cast<std::size_t>(k) * (kStackBytes + page_bytes()) + page_bytes(), kStackBytes,
        fiber_main);
    block.thread[k].copies.clear();
    block.thread[k].batches = 0;
    make_ready(k);
  }
  while (block.ended < block.threads) {
    const int next = next_thread();
    if (next < 0) {
      failure_text = standstill();
      failed = true;
      return;
    }
    block.running = next;
    block.ready[static_cast<std::size_t>(next / kWarp)] &= ~(1u << (next % kWarp));
    threadIdx = {static_cast<unsigned>(next), 0, 0};
    in_kernel = true;
    scheduler.give_way_to(block.thread[next].flow);
    in_kernel = false;
    if (failed) return;
  }
}

// The calling thread's part of the program's own thread-local storage.
void find_static_shared() {
  static_shared = nullptr;
  static_shared_bytes = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* information, std::size_t, void*) {
        for (int k = 0; k < information->dlpi_phnum; ++k) {
          if (information->dlpi_phdr[k].p_type != PT_TLS) continue;
          static_shared = static_cast<unsigned char*>(information->dlpi_tls_data);
          static_shared_bytes = information->dlpi_phdr[k].p_memsz;
        }
        return 1;  // the program itself comes first; no other module
      },
      nullptr);
}

void run_grid(std::size_t shared_bytes) {
  constexpr std::size_t kSignalStack = 64 << 10;
  const std::unique_ptr<unsigned char[]> signal_stack(new unsigned char[kSignalStack]);
  stack_t alternative{};
  alternative.ss_sp = signal_stack.get();
  alternative.ss_size = kSignalStack;
  sigaltstack(&alternative, nullptr);
  find_static_shared();
  dynamic_shared_bytes = (shared_bytes + 15) / 16 * 16;
  dynamic_shared = dynamic_pages() + whole_pages(kSharedPerBlockOptin) - dynamic_shared_bytes;
  for (const std::uint64_t index : in_order(std::uint64_t{gridDim.x}, ~std::uint64_t{0})) {
    run_block(index);
    if (failed) break;
  }
  alternative.ss_flags = SS_DISABLE;
  sigaltstack(&alternative, nullptr);
}

}  // namespace

Settings& settings() { return settings_now; }

const std::string& failure() { return failure_text; }

std::int64_t launches() { return launch_count; }

std::int64_t occupancy_questions() { return occupancy_count; }

std::set<CUstream_st*> take_streams() { return std::exchange(streams_now, {}); }

cudaError_t launch(const void* kernel, Run run, dim3 grid, dim3 block, void** arguments,
                   std::size_t shared_bytes, cudaStream_t stream) {
  static const bool handlers = [] {
    for (const int number : {SIGSEGV, SIGBUS, SIGILL}) {
      struct sigaction action{};
      action.sa_sigaction = on_signal;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler does not return
      sigaction(number, &action, nullptr);
    }
    return true;
  }();
  static_cast<void>(handlers);
  const unsigned threads = block.x * block.y * block.z;
  if (grid.x == 0 || grid.x > 0x7fffffffu || grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1 ||
      threads == 0 || threads > kMostThreads) {
    return cudaErrorInvalidConfiguration;  // of two and three dimensions nothing here makes use
  }
  const auto limit = dynamic_limits().find(kernel);
  if (shared_bytes >
      static_cast<std::size_t>(limit == dynamic_limits().end() ? kSharedPerBlock : limit->second))
    return cudaErrorInvalidValue;
  ++launch_count;
  streams_now.insert(stream);
  failed = false;
  run_now = run;
  kernel_now = kernel;
  arguments_now = arguments;
  gridDim = grid;
  blockDim = block;
  std::thread(run_grid, shared_bytes).join();
  return failed ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > kSharedPerBlockOptin) return cudaErrorInvalidValue;
  dynamic_limits()[kernel] = value;
  return cudaSuccess;
}

int resident_blocks(int threads, std::size_t shared_bytes) {
  ++occupancy_count;
  const int by_threads = kThreadsPerMultiprocessor / threads;
  if (shared_bytes == 0) return by_threads;
  // 1 KiB a block is the system's
  return std::min(by_threads, static_cast<int>(kSharedPerMultiprocessor / (shared_bytes + 1024)));
}

void exchange(const char* what, unsigned mask, std::uint64_t own, std::uint64_t (&all)[32],
              const std::source_location& where) {
  const int warp = block_state.running / kWarp, lane = block_state.running % kWarp;
  if ((mask >> lane & 1) == 0)
    fail(std::string(what) + " at " + text_of(where) + " with a mask that lacks the calling lane");
  auto& open = block_state.open[static_cast<std::size_t>(warp)];
  Collective* ours = nullptr;
  for (const auto& each : open) {
    if (each->mask == mask && (each->arrived >> lane & 1) == 0 && std::strcmp(each->what, what) == 0 &&
        same_place(each->where, where)) {
      ours = each.get();
    }
  }
  if (ours == nullptr) {
    open.push_back(std::make_unique<Collective>(Collective{what, where, mask, 0, 0, {}}));
    ours = open.back().get();
  }
  ours->arrived |= 1u << lane;
  ours->values[lane] = own;
  if (ours->arrived == mask) {
    for (int other = 0; other < kWarp; ++other) {
      if (other != lane && (mask >> other & 1) != 0) make_ready(warp * kWarp + other);
    }
  } else {
    Thread& thread = block_state.thread[block_state.running];
    thread.state = State::collective;
    thread.waits_in = what;
    thread.where = where;
    give_way();
  }
  std::memcpy(all, ours->values, sizeof all);
  ours->left |= 1u << lane;
  if (ours->left == mask) std::erase_if(open, [&](const auto& each) { return each.get() == ours; });
}

void require_source(const char* what, unsigned mask, int source, const std::source_location& where) {
  if (source < 0 || source >= kWarp || (mask >> source & 1) == 0) {
    fail(std::string(what) + " at " + text_of(where) + " reads lane " + std::to_string(source) +
         ", which is not in its mask");
  }
}

Guarded::Guarded(std::size_t bytes, const Placement& placement)
    : pages_bytes_(whole_pages(bytes + 32)), bytes_(bytes) {
  constexpr std::size_t kAlignment = 16;
  const std::size_t offset = static_cast<std::size_t>(placement.offset);
  pages_ = map_guarded(pages_bytes_);
  std::memset(pages_, kPoison, pages_bytes_);
  data_ = placement.edge == Edge::begin
              ? pages_ + offset
              : pages_ + (pages_bytes_ - bytes - offset) / kAlignment * kAlignment + offset;
  known_arrays()[pages_] = {placement.name, pages_, pages_ + pages_bytes_, data_, data_ + bytes_, false};
}

Guarded::Guarded(Guarded&& other) noexcept
    : pages_(std::exchange(other.pages_, nullptr)), data_(other.data_), pages_bytes_(other.pages_bytes_),
      bytes_(other.bytes_) {}

Guarded::~Guarded() {
  if (pages_ == nullptr) return;
  known_arrays().erase(pages_);
  unmap_guarded(pages_, pages_bytes_);
}

bool Guarded::untouched_outside() const {
  const auto is_poison = [](unsigned char byte) { return byte == kPoison; };
  return std::all_of(pages_, data_, is_poison) &&
         std::all_of(data_ + bytes_, pages_ + pages_bytes_, is_poison);
}

void Guarded::make_read_only() {
  mprotect(pages_, pages_bytes_, PROT_READ);
  known_arrays()[pages_].read_only = true;
}

}  // namespace outgrad::tests::gpu_stand_in

using namespace outgrad::tests::gpu_stand_in;

namespace {

void come_to_barrier(unsigned name, unsigned threads, const char* what, const std::source_location& where) {
  Block& block = block_state;
  Block::Barrier& barrier = block.barriers[name];
  if (!barrier.waiting.empty() && !same_place(barrier.where, where)) {
    fail("comes to the barrier at " + text_of(where) + " while others wait at " + text_of(barrier.where));
  }
  if (!barrier.waiting.empty() && barrier.threads != threads)
    fail("comes to a barrier of other threads at " + text_of(where));
  barrier.where = where;
  barrier.threads = threads;
  barrier.waiting.push_back(block.running);
  if (barrier.waiting.size() == threads) {
    // Who came last goes on last or first, as the order has it.
    for (const int index : barrier.waiting) make_ready(index);
    barrier.waiting.clear();
    give_way();
    return;
  }
  Thread& thread = block.thread[block.running];
  thread.state = State::barrier;
  thread.waits_in = what;
  thread.where = where;
  give_way();
}

}  // namespace

void __syncthreads(std::source_location where) {
  come_to_barrier(0, static_cast<unsigned>(block_state.threads), "__syncthreads", where);
}

// Barriers before and behind the exchange, so that the next one does not mix with it.
int __syncthreads_or(int predicate, std::source_location where) {
  const auto come = [&] {
    come_to_barrier(0, static_cast<unsigned>(block_state.threads), "__syncthreads_or", where);
  };
  block_state.any = false;
  come();
  block_state.any = block_state.any || predicate != 0;
  come();
  const int result = block_state.any ? 1 : 0;
  come();
  return result;
}

void stand_in_barrier(unsigned name, unsigned threads, std::source_location where) {
  if (name == 0 || name >= kBarriers || threads == 0 || threads % kWarp != 0 ||
      threads > static_cast<unsigned>(block_state.threads)) {
    fail("barrier " + std::to_string(name) + " for " + std::to_string(threads) + " threads at " +
         text_of(where));
  }
  come_to_barrier(name, threads, "bar.sync", where);
}

void __pipeline_memcpy_async(void* shared, const void* global, std::size_t bytes) {
  static_cast<void>(__cvta_generic_to_shared(shared));
  const auto at = reinterpret_cast<std::uintptr_t>(shared) | reinterpret_cast<std::uintptr_t>(global);
  if ((bytes != 4 && bytes != 8 && bytes != 16) || at % bytes != 0)
    fail("an asynchronous copy of " + std::to_string(bytes) + " bytes, or misaligned");
  Thread& thread = block_state.thread[block_state.running];
  thread.copies.push_back({shared, global, bytes, thread.batches});
}

void __pipeline_commit() { ++block_state.thread[block_state.running].batches; }

void __pipeline_wait_prior(std::size_t batches) {
  Thread& thread = block_state.thread[block_state.running];
  while (!thread.copies.empty() && thread.copies.front().batch + batches < thread.batches) {
    const Copy copy = thread.copies.front();
    thread.copies.pop_front();
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
}

std::size_t __cvta_generic_to_shared(const void* address) {
  const auto* const at = static_cast<const unsigned char*>(address);
  if (at >= static_shared && at < static_shared + static_shared_bytes)
    return static_cast<std::size_t>(at - static_shared);
  if (at >= dynamic_shared && at < dynamic_shared + dynamic_shared_bytes)
    return kDynamicAddress + static_cast<std::size_t>(at - dynamic_shared);
  fail("a shared address is asked for " + whereabouts(address) + ", which is not shared");
}

void* __cvta_shared_to_generic(std::size_t address) {
  if (address < static_shared_bytes) return static_shared + address;
  if (address >= kDynamicAddress && address - kDynamicAddress < dynamic_shared_bytes)
    return dynamic_shared + (address - kDynamicAddress);
  fail("shared address " + std::to_string(address) + " is beyond the block's memory");
}

void* stand_in_dynamic_shared() { return dynamic_shared; }

float stand_in_rsqrt(float t) {
  if (!(t > 0.0f) || std::isinf(t)) return 1.0f / std::sqrt(t);
  // Rounding to fp32 may add 2^-24 to the relative error; what is left of the bound is used to either side,
  // by the bits of t.
  static const double most = std::exp2(-22.9) - 0x1.01p-24;
  std::uint32_t bits;
  std::memcpy(&bits, &t, sizeof bits);
  const double share = static_cast<double>(mixed(bits) >> 11) * 0x1p-52 - 1.0;  // in [-1, 1)
  return static_cast<float>((1.0 + most * share) / std::sqrt(static_cast<double>(t)));
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
  }
  return "unknown";
}

const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return cudaErrorInvalidDevice;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = kMostThreads; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = kSharedPerBlock; break;
    case cudaDevAttrMultiProcessorCount: *value = settings().multiprocessors; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = kThreadsPerMultiprocessor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = kSharedPerMultiprocessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kSharedPerBlockOptin; break;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return cudaErrorInvalidDevice;
  constexpr std::size_t kMemory = std::size_t{8} << 30, kDrivers = std::size_t{100} << 20;
  *properties = {"Stand-in GPU", kMemory - kDrivers, 8, 0, settings().multiprocessors};
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* address, int byte, std::size_t bytes, cudaStream_t stream) {
  streams_now.insert(stream);
  std::memset(address, byte, bytes);
  return cudaSuccess;
}
