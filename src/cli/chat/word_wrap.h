// Lines of a terminal that break between words, of text that comes piece by piece.
#pragma once

#include <string>
#include <string_view>

namespace quire::cli {

// A word that reaches the end of the line is taken back and begun again on the next one, so that nothing waits for a
// word's end. Lines between ``` are code and stay as they are, and so does a word that is as long as a line.
class WordWrap {
 public:
  // Of a terminal with so many columns; 0: nothing is wrapped.
  void set_columns(int columns) { columns_ = columns; }
  // The cursor is at the beginning of a line, and what comes is another text.
  void restart();
  // What the terminal is to be sent for these characters, whole ones without control characters but line breaks and
  // tabs.
  std::string push(std::string_view text);

 private:
  void put(char32_t c, std::string& out);
  void end_line();

  int columns_ = 0;
  int column_ = 0;        // where the cursor is
  std::string word_;      // since the last place where a line may break
  int word_columns_ = 0;  // that it takes
  std::string begin_;     // of the line that the text has, up to three characters: whether it is ```
  bool code_ = false, skip_blanks_ = false;
};

}  // namespace quire::cli
