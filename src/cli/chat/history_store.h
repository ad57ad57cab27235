// The lines of a history, in memory and in a file of one line each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {

// Line breaks and backslashes as "\n" and "\\", so that an entry is one line of the file.
std::string history_line(std::string_view entry);
std::string history_entry(std::string_view line);

class HistoryStore {
 public:
  static constexpr size_t kMaxEntries = 1000, kMaxEntryBytes = 64 << 10, kMaxFileBytes = 16 << 20;

  // Reads what is there, of a large file its end. Entries that are no valid UTF-8 are left out.
  explicit HistoryStore(std::string path);

  const std::vector<std::string>& entries() const { return entries_; }
  // False if the entry is empty, too long or the one before: it is not added then.
  bool add(const std::string& entry);

 private:
  void append(const std::string& line);
  void rewrite() const;

  std::string path_;
  std::vector<std::string> entries_;  // oldest first
};

}  // namespace quire::cli
