#include "tools/ktc/explore_measure.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "compiler/emit/Emit.h"
#include "compiler/pipeline/Pipeline.h"
#include "llvm/Support/JSON.h"
#include "mlir/IR/MLIRContext.h"
#include "tools/ktc/text_file.h"

namespace ktc::tools {
namespace {

namespace fs = std::filesystem;

// Of a file that a run was to write: empty where it did not.
std::string text_of(const fs::path& path) {
  Expected<std::string> text = read_text_file("", path);
  return text.ok() ? std::move(text).value() : std::string();
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.find_last_of('\n') == text.npos ? 0 : text.find_last_of('\n') + 1);
}

Status failed(const std::string& what, int error) {
  return make_error(StatusCode::io_error, {.place = "--measure", .what = what, .found = std::strerror(error)});
}

std::atomic<pid_t> running{0};

constexpr float kZipf = 0.6f;  // the most popular of 128 experts then serves a third of all tokens

// Runs a program without a shell; its outputs go to files. Returns the exit status, -1 for a signal. `seconds`: 0 for as long as it likes.
Expected<int> run(const std::vector<std::string>& arguments, const fs::path& out, const fs::path& err, double seconds) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  const int error = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return failed("cannot start " + arguments[0], error);
  running = child;
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  int status = 0;
  bool killed = false;
  for (pid_t ended = 0; ended != child;) {
    ended = waitpid(child, &status, seconds > 0 && !killed ? WNOHANG : 0);
    if (ended < 0 && errno != EINTR) return failed("cannot wait for ktc-run", errno);
    if (ended != 0) continue;
    if (Clock::now() > end) {
      kill(child, SIGKILL);
      killed = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  running = 0;
  if (killed)
    return make_error(StatusCode::unavailable, {.place = "ktc-run", .what = "no end in time", .found = fmt::format("nothing after {:.0f} s", seconds)});
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

Expected<TemporaryFolder> TemporaryFolder::create() {
  std::error_code error;
  std::string name = (fs::temp_directory_path(error) / "ktc-explore-XXXXXX").string();
  if (error || mkdtemp(name.data()) == nullptr) return failed("cannot make a temporary folder", errno);
  return TemporaryFolder(fs::path(name));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

Expected<Measured> measure_plan(const models::ModelDesc& model, const placement::Policy& policy, const placement::Target& target,
                                const MeasureOptions& options, const fs::path& scratch) {
  const fs::path plan = scratch / "plan.ktp";
  std::error_code ignored;
  fs::remove_all(plan, ignored);
  {
    mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
    KTC_ASSIGN_OR_RETURN(auto module, compiler::compileTo(context, model, policy, target, {}));
    compiler::EmitOptions emit;
    emit.folder = plan;
    emit.report = [](const std::vector<compiler::WeightQuality>&) { return std::string("{}\n"); };
    if (options.random_seed) {
      emit.random.emplace();
      emit.random->seed = *options.random_seed;
      if (options.zipf) emit.random->router_zipf = kZipf;
    }
    KTC_RETURN_IF_ERROR(compiler::emitPlan(*module, model, emit));
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "ktc-run";
  const fs::path out = scratch / "out.json", err = scratch / "err.txt";
  std::vector<std::string> words = {program.string(), plan.string(), "--bench", fmt::format("{},{}", options.prompt, options.new_tokens), "--json"};
  if (options.emulate_gpu) words.push_back("--emulate-gpu");
  if (options.drawn) words.insert(words.end(), {"--temperature", "1", "--top-k", "20", "--seed", "1"});
  if (options.quiet) words.insert(words.end(), {"--repeat", "5"});
  KTC_ASSIGN_OR_RETURN(const int status, run(words, out, err, options.seconds));
  if (status != 0)
    return Status(StatusCode::unsupported, "not run here: " + (status < 0 ? std::string("ktc-run was killed") : last_line(text_of(err))));
  auto json = llvm::json::parse(text_of(out));
  if (!json) {
    llvm::consumeError(json.takeError());
    return Status(StatusCode::internal, "--measure: ktc-run --bench --json said no JSON; please report this");
  }
  const llvm::json::Object* object = json->getAsObject();
  const auto number = [&](const char* key) -> double {
    if (object == nullptr) return 0;
    const llvm::json::Object* runs = object->getObject("runs");
    const llvm::json::Array* rates = options.quiet && runs != nullptr ? runs->getArray(key) : nullptr;
    if (rates == nullptr || rates->size() < 2) return object->getNumber(key).value_or(0);
    std::vector<double> sorted;
    for (const llvm::json::Value& rate : *rates) sorted.push_back(rate.getAsNumber().value_or(0));
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() - 2];
  };
  return Measured{number("decode_tokens_per_second"), number("prefill_tokens_per_second")};
}

void kill_measured() {
  if (const pid_t child = running; child > 0) kill(child, SIGKILL);
}

}  // namespace ktc::tools
