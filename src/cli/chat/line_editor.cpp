#include "cli/chat/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "cli/chat/history_store.h"
#include "cli/chat/terminal_text.h"
#include "cli/run.h"
#include "command/help.h"
#include "core/escape.h"
#include "tokenizer/unicode.h"

namespace quire::cli {
namespace {

// What a terminal does between a paste and the keys around it once it was asked to (xterm's "bracketed
// paste").
constexpr char kPasteOn[] = "\033[?2004h", kPasteOff[] = "\033[?2004l";
constexpr wchar_t kPasteBegin[] = L"\033[200~", kPasteEnd[] = L"\033[201~";
constexpr size_t kMaxPaste = 4 << 20;  // characters
constexpr int kPollMilliseconds = 200;

volatile std::sig_atomic_t resized = 0, stopped = 0;

// Notes that the window has another size and that Ctrl-Z was typed, while it lives: the terminal's modes have
// to be put right then.
class TerminalSignals {
 public:
  TerminalSignals() {
    install(
        SIGWINCH, [](int) { resized = 1; }, window_);
    install(
        SIGTSTP, [](int) { stopped = 1; }, stop_);
  }
  ~TerminalSignals() {
    sigaction(SIGWINCH, &window_, nullptr);
    sigaction(SIGTSTP, &stop_, nullptr);
  }
  TerminalSignals(const TerminalSignals&) = delete;
  TerminalSignals& operator=(const TerminalSignals&) = delete;

  // As the shell expects it; returns when it lets the program go on.
  void stop() const {
    stopped = 0;
    struct sigaction ours {};
    sigaction(SIGTSTP, &stop_, &ours);
    std::raise(SIGTSTP);
    sigaction(SIGTSTP, &ours, nullptr);
  }

 private:
  static void install(int signal, void (*handler)(int), struct sigaction& before) {
    struct sigaction action {};
    action.sa_handler = handler;
    sigemptyset(&action.sa_mask);
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }

  struct sigaction window_ {
  }, stop_{};
};

std::wstring to_wide(std::string_view text) {
  std::u32string points;
  unicode::append_code_points(text, points);
  return {points.begin(), points.end()};
}
std::string to_utf8(std::wstring_view text) {
  std::string bytes;
  for (const wchar_t c : text) unicode::append_utf8(static_cast<char32_t>(c), bytes);
  return bytes;
}

// Line breaks and tabs stay.
std::wstring without_controls(std::wstring_view text) {
  std::wstring kept;
  for (const wchar_t c : text) {
    const bool control = (c < 0x20 && c != L'\n' && c != L'\t') || (c >= 0x7f && c < 0xa0);
    if (!control) kept += c;
  }
  return kept;
}

std::string read_plainly() {
  std::string line;
  for (int c = std::getchar(); c != EOF && c != '\n'; c = std::getchar()) line += static_cast<char>(c);
  return line;
}

}  // namespace

struct LineEditor::Impl {
  Impl(std::string history_path, bool with_colours) : store(std::move(history_path)), colours(with_colours) {}
  ~Impl() {
    if (edit != nullptr) el_end(edit);
    if (lines != nullptr) history_wend(lines);
  }

  void open();
  void bind_keys() const;
  void enter(const std::string& entry) const;
  int next_byte();
  int next_character(wchar_t& out);
  TypedLine read(std::string_view text, std::string_view draft);
  std::string offered(const Completion& c) const;

  static Impl& of(EditLine* e) {
    void* self = nullptr;
    el_wget(e, EL_CLIENTDATA, &self);
    return *static_cast<Impl*>(self);
  }
  static wchar_t* show_prompt(EditLine* e) { return of(e).prompt.data(); }
  static int get_character(EditLine* e, wchar_t* out) { return of(e).next_character(*out); }
  static unsigned char paste(EditLine* e, wint_t key);
  static unsigned char complete(EditLine* e, wint_t key);

  HistoryStore store;
  bool colours;
  EditLine* edit = nullptr;  // null: no editing
  HistoryW* lines = nullptr;
  std::wstring prompt;
  std::function<Completion(std::string_view)> completer;
  std::wstring ahead;  // keys that come before those of the terminal, but for the first `ahead_taken`
  size_t ahead_taken = 0;
  bool interrupted = false;
  const TerminalSignals* signals = nullptr;  // while a line is read
};

void LineEditor::Impl::open() {
  if (isatty(STDIN_FILENO) == 0 || isatty(STDERR_FILENO) == 0) return;
  // libedit writes multi-byte characters by the locale; every Debian has this one.
  if (std::setlocale(LC_CTYPE, "C.UTF-8") == nullptr) return;
  edit = el_init("quire", stdin, stderr, stderr);
  if (edit == nullptr) return;
  lines = history_winit();
  HistEventW event{};
  if (lines != nullptr) {
    history_w(lines, &event, H_SETSIZE, static_cast<int>(HistoryStore::kMaxEntries));
    for (const std::string& entry : store.entries()) enter(entry);
    el_wset(edit, EL_HIST, history_w, lines);
  }
  el_wset(edit, EL_CLIENTDATA, this);
  el_wset(edit, EL_PROMPT_ESC, show_prompt, L'\1');  // what stands between two \1 takes no room
  el_wset(edit, EL_EDITOR, L"emacs");
  el_wset(edit, EL_SIGNAL, 0);
  el_wset(edit, EL_GETCFN, get_character);
  bind_keys();
}

void LineEditor::Impl::bind_keys() const {
  el_wset(edit, EL_ADDFN, L"paste", L"Insert what is pasted", paste);
  el_wset(edit, EL_ADDFN, L"complete", L"Complete the word before the cursor", complete);
  constexpr std::pair<const wchar_t*, const wchar_t*> kKeys[] = {
      {kPasteBegin, L"paste"},
      {L"\t", L"complete"},
      {L"\033[3~", L"ed-delete-next-char"},
      {L"\033[1~", L"ed-move-to-beg"},
      {L"\033[H", L"ed-move-to-beg"},
      {L"\033[4~", L"ed-move-to-end"},
      {L"\033[F", L"ed-move-to-end"},
      {L"\033[1;5D", L"ed-prev-word"},
      {L"\033[1;5C", L"em-next-word"},
      {L"^R", L"em-inc-search-prev"},
      {L"^W", L"ed-delete-prev-word"},
  };
  for (const auto& [key, action] : kKeys) el_wset(edit, EL_BIND, key, action, static_cast<wchar_t*>(nullptr));
}

void LineEditor::Impl::enter(const std::string& entry) const {
  HistEventW event{};
  if (lines != nullptr) history_w(lines, &event, H_ENTER, to_wide(entry).c_str());
}

// The next byte of standard input; -1: there is none, or Ctrl-C was typed.
int LineEditor::Impl::next_byte() {
  for (;;) {
    if (CancelKey::take() != 0) {
      interrupted = true;
      return -1;
    }
    if (resized != 0) {
      resized = 0;
      el_resize(edit);
      el_wset(edit, EL_REFRESH);
    }
    if (stopped != 0) {
      el_wset(edit, EL_PREP_TERM, 0);
      signals->stop();
      el_wset(edit, EL_PREP_TERM, 1);
      el_wset(edit, EL_REFRESH);
    }
    // Handlers run between two polls as well: so no poll is long.
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, kPollMilliseconds) <= 0) continue;
    unsigned char byte = 0;
    const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    return n == 1 ? byte : -1;
  }
}

// As libedit asks for it: 1 and a character, 0 at the end, -1 if there is none.
int LineEditor::Impl::next_character(wchar_t& out) {
  if (ahead_taken < ahead.size()) {
    out = ahead[ahead_taken++];
    return 1;
  }
  std::string bytes;
  for (;;) {
    const int byte = next_byte();
    if (byte < 0) return interrupted ? -1 : 0;
    bytes += static_cast<char>(byte);
    const unicode::Decoded d = unicode::decode(bytes);
    if (d.status == unicode::Utf8::kTruncated) continue;
    out = static_cast<wchar_t>(d.code_point);
    return 1;
  }
}

// Everything up to the closing mark goes into the line, line breaks included and other control characters
// not.
unsigned char LineEditor::Impl::paste(EditLine* e, wint_t /*key*/) {
  const std::wstring_view end(kPasteEnd);
  std::wstring text, tail;  // `tail`: what may yet be the mark
  while (tail != end) {
    wchar_t c = 0;
    if (of(e).next_character(c) != 1) return CC_EOF;
    tail += c;
    if (tail.size() <= end.size()) continue;
    if (text.size() < kMaxPaste) text += tail.front();
    tail.erase(0, 1);
  }
  std::replace(text.begin(), text.end(), L'\r', L'\n');  // terminals paste line breaks as Enter
  std::wstring kept = without_controls(text);
  while (kept.ends_with(L'\n')) kept.pop_back();  // Enter is for the person
  if (kept.empty()) return CC_NORM;
  return el_winsertstr(e, kept.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

// In columns as wide as the terminal, or one below the other.
std::string LineEditor::Impl::offered(const Completion& c) const {
  constexpr size_t kMost = 100;
  size_t widest = 0;
  for (const std::string& word : c.words) widest = std::max(widest, word.size());
  const auto room = static_cast<size_t>(std::max(terminal_columns(), 1));
  const size_t in_line = std::max<size_t>(1, room / (widest + 1));
  std::string text;
  for (size_t i = 0; i < std::min(kMost, c.words.size()); ++i)
    text += fmt::format("{}{:<{}}", i % in_line == 0 ? "\n" : " ", escaped(c.words[i]), widest);
  if (c.words.size() > kMost) text += fmt::format("\n... and {} more", c.words.size() - kMost);
  return text + "\n";
}

// What all words have in common is put in; what they do not is shown.
unsigned char LineEditor::Impl::complete(EditLine* e, wint_t /*key*/) {
  Impl& self = of(e);
  const LineInfoW* const info = el_wline(e);
  const std::string line = to_utf8({info->buffer, static_cast<size_t>(info->cursor - info->buffer)});
  if (!line.starts_with('/') || !self.completer) return el_winsertstr(e, L"\t") == 0 ? CC_REFRESH : CC_ERROR;
  const Completion c = self.completer(line);
  if (c.words.empty()) return CC_ERROR;
  std::string common = c.words.front();
  for (const std::string& word : c.words)
    common.resize(static_cast<size_t>(std::mismatch(common.begin(), common.end(), word.begin(), word.end()).first -
                                      common.begin()));
  if (!unicode::is_valid_utf8(common)) return CC_ERROR;  // a file's name that cannot be typed, or half a character
  if (common.size() > c.typed)
    return el_winsertstr(e, to_wide(std::string_view(common).substr(c.typed)).c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  if (c.words.size() == 1) return CC_NORM;
  std::fputs(self.offered(c).c_str(), stderr);
  std::fflush(stderr);
  return CC_REDISPLAY;
}

TypedLine LineEditor::Impl::read(std::string_view text, std::string_view draft) {
  const std::wstring wide = to_wide(text);
  prompt = colours ? L"\1\033[1m\1" + wide + L"\1\033[0m\1" : wide;
  interrupted = false;
  ahead = draft.empty() ? L"" : kPasteBegin + without_controls(to_wide(draft)) + kPasteEnd;
  ahead_taken = 0;
  const TerminalSignals noted;
  signals = &noted;
  std::fputs(kPasteOn, stderr);
  std::fflush(stderr);
  int count = 0;
  const wchar_t* line = el_wgets(edit, &count);
  std::fputs(kPasteOff, stderr);
  std::fflush(stderr);
  signals = nullptr;
  if (interrupted) {
    std::fputs("^C\n", stderr);
    el_reset(edit);
    return {TypedLine::End::kInterrupt, {}};
  }
  if (line == nullptr || count <= 0) {
    std::fputs("\n", stderr);
    return {TypedLine::End::kEndOfFile, {}};
  }
  std::wstring_view typed(line, static_cast<size_t>(count));
  if (typed.ends_with(L'\n')) typed.remove_suffix(1);
  return {TypedLine::End::kLine, to_utf8(typed)};
}

LineEditor::LineEditor(std::string history_path, bool colours)
    : impl_(std::make_unique<Impl>(std::move(history_path), colours)) {
  impl_->open();
}
LineEditor::~LineEditor() = default;

void LineEditor::set_completer(std::function<Completion(std::string_view)> completer) {
  impl_->completer = std::move(completer);
}

TypedLine LineEditor::read(std::string_view prompt, std::string_view draft) {
  if (impl_->edit != nullptr) return impl_->read(prompt, draft);
  std::fprintf(stderr, "%.*s", static_cast<int>(prompt.size()), prompt.data());
  std::string line = read_plainly();
  if (line.empty() && std::feof(stdin) != 0) return {};
  return {TypedLine::End::kLine, unicode::replace_invalid(line)};
}

void LineEditor::remember(const std::string& text) {
  if (impl_->store.add(text)) impl_->enter(text);
}

std::string history_file() {
  const char* const state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && state[0] == '/') return std::string(state) + "/quire/chat_history";
  const char* const home = std::getenv("HOME");
  if (home == nullptr || home[0] != '/') return {};
  return std::string(home) + "/.local/state/quire/chat_history";
}

}  // namespace quire::cli
