// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace radixmlp_tools {

// Reads a file, or standard input for "-", line by line; compressed with gzip or not, which its first bytes tell.
// Throws std::runtime_error that says what is wrong with the file.
class InputLines {
 public:
  static constexpr std::size_t longest_line = std::size_t{64} << 20;

  explicit InputLines(std::string path);
  ~InputLines();
  InputLines(const InputLines&) = delete;
  InputLines& operator=(const InputLines&) = delete;

  // The next line without its newline; false at the end. Throws std::invalid_argument for a line of more than
  // longest_line bytes, and goes on behind it.
  bool next(std::string& line);

  [[nodiscard]] std::int64_t number() const noexcept { return number_; }  // of the line that `next` gave; from 1 on

 private:
  bool fill();  // reads more into buffer_; false at the end
  [[noreturn]] void fail(const std::string& what) const;

  std::string path_;
  int descriptor_ = -1;
  void* gzip_ = nullptr;  // gzFile, where zlib is
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of what is not yet taken from buffer_
  std::size_t end_ = 0;
  std::int64_t number_ = 0;
};

}  // namespace radixmlp_tools
