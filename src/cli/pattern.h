// Regular expressions given by users, on tensor names. Matching does a bounded amount of work: a pattern that
// would backtrack for ever is an error.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/result.h"

struct pcre2_real_code_8;

namespace quire::cli {

class Pattern {
 public:
  // Perl's syntax. An error says what is wrong, and where.
  static Result<Pattern> compile(std::string_view text);

  // Whether it matches anywhere in the subject.
  Result<bool> found_in(std::string_view subject) const;
  const std::string& text() const { return text_; }

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::string text_;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace quire::cli
