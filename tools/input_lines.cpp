// SPDX-License-Identifier: MIT
#include "input_lines.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#ifdef RADIXMLP_HAS_ZLIB
#include <zlib.h>
#endif

namespace radixmlp_tools {

InputLines::InputLines(std::string path) : path_(std::move(path)), buffer_(std::size_t{256} << 10) {
  descriptor_ = path_ == "-" ? dup(STDIN_FILENO) : open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) {
    fail(std::string("cannot open: ") + std::strerror(errno));
  }
#ifdef RADIXMLP_HAS_ZLIB
  gzip_ = gzdopen(descriptor_, "rb");  // passes on what is not compressed
  if (gzip_ == nullptr) {
    close(descriptor_);
    fail("cannot open: no memory");
  }
  gzbuffer(static_cast<gzFile>(gzip_), static_cast<unsigned>(buffer_.size()));
#endif
}

InputLines::~InputLines() {
#ifdef RADIXMLP_HAS_ZLIB
  gzclose_r(static_cast<gzFile>(gzip_));  // closes the descriptor, too
#else
  close(descriptor_);
#endif
}

void InputLines::fail(const std::string& what) const { throw std::runtime_error(path_ + ": " + what); }

bool InputLines::fill() {
#ifdef RADIXMLP_HAS_ZLIB
  auto* const gzip = static_cast<gzFile>(gzip_);
  const int got = gzread(gzip, buffer_.data(), static_cast<unsigned>(buffer_.size()));
  if (got <= 0) {
    int error = Z_OK;
    const char* const message = gzerror(gzip, &error);
    if (error == Z_ERRNO) {
      fail(std::string("cannot read: ") + std::strerror(errno));
    }
    if (error != Z_OK && error != Z_STREAM_END) {
      fail("behind line " + std::to_string(number_) +
           ": damaged gzip data: " + (error == Z_BUF_ERROR ? "it ends too early" : message));
    }
  }
#else
  const ssize_t got = read(descriptor_, buffer_.data(), buffer_.size());
  if (got < 0) {
    fail(std::string("cannot read: ") + std::strerror(errno));
  }
  if (number_ == 0 && got > 0 && buffer_[0] == '\x1f') {  // no line of JSON begins so
    fail("is compressed, and this program was built without zlib; zcat FILE | radixmlp-analyze -");
  }
#endif
  begin_ = 0;
  end_ = static_cast<std::size_t>(std::max<decltype(got)>(got, 0));
  return end_ > 0;
}

bool InputLines::next(std::string& line) {
  line.clear();
  bool is_too_long = false;
  bool has_any = false;
  while (begin_ < end_ || fill()) {
    has_any = true;
    const char* const from = buffer_.data() + begin_;
    const auto* const newline = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
    const std::size_t bytes = newline == nullptr ? end_ - begin_ : static_cast<std::size_t>(newline - from);
    is_too_long = is_too_long || line.size() + bytes > longest_line;
    if (!is_too_long) {
      line.append(from, bytes);
    }
    begin_ += bytes + (newline == nullptr ? 0 : 1);
    if (newline != nullptr) {
      break;
    }
  }
  number_ += has_any ? 1 : 0;
  if (is_too_long) {
    throw std::invalid_argument("is longer than " + std::to_string(longest_line >> 20) + " MiB");
  }
  return has_any;
}

}  // namespace radixmlp_tools
