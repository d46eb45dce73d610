// A folder that looks like /proc and /sys.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/weights/system_files.h"
#include "test/support/plan_builder.h"

namespace ktc::test {

class FakeSystem {
 public:
  // `path` is "proc/…" or "sys/…".
  void put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  weights::SystemRoots roots() const { return {folder_.path() / "proc", folder_.path() / "sys"}; }

 private:
  TempFolder folder_;
};

}  // namespace ktc::test
