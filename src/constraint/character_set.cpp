#include "constraint/character_set.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace quire {
namespace {

struct Category {
  std::string_view name, long_name;
  int value;
};
constexpr Category kCategories[] = {
    {"Lu", "Uppercase_Letter", UTF8PROC_CATEGORY_LU},
    {"Ll", "Lowercase_Letter", UTF8PROC_CATEGORY_LL},
    {"Lt", "Titlecase_Letter", UTF8PROC_CATEGORY_LT},
    {"Lm", "Modifier_Letter", UTF8PROC_CATEGORY_LM},
    {"Lo", "Other_Letter", UTF8PROC_CATEGORY_LO},
    {"Mn", "Nonspacing_Mark", UTF8PROC_CATEGORY_MN},
    {"Mc", "Spacing_Mark", UTF8PROC_CATEGORY_MC},
    {"Me", "Enclosing_Mark", UTF8PROC_CATEGORY_ME},
    {"Nd", "Decimal_Number", UTF8PROC_CATEGORY_ND},
    {"Nl", "Letter_Number", UTF8PROC_CATEGORY_NL},
    {"No", "Other_Number", UTF8PROC_CATEGORY_NO},
    {"Pc", "Connector_Punctuation", UTF8PROC_CATEGORY_PC},
    {"Pd", "Dash_Punctuation", UTF8PROC_CATEGORY_PD},
    {"Ps", "Open_Punctuation", UTF8PROC_CATEGORY_PS},
    {"Pe", "Close_Punctuation", UTF8PROC_CATEGORY_PE},
    {"Pi", "Initial_Punctuation", UTF8PROC_CATEGORY_PI},
    {"Pf", "Final_Punctuation", UTF8PROC_CATEGORY_PF},
    {"Po", "Other_Punctuation", UTF8PROC_CATEGORY_PO},
    {"Sm", "Math_Symbol", UTF8PROC_CATEGORY_SM},
    {"Sc", "Currency_Symbol", UTF8PROC_CATEGORY_SC},
    {"Sk", "Modifier_Symbol", UTF8PROC_CATEGORY_SK},
    {"So", "Other_Symbol", UTF8PROC_CATEGORY_SO},
    {"Zs", "Space_Separator", UTF8PROC_CATEGORY_ZS},
    {"Zl", "Line_Separator", UTF8PROC_CATEGORY_ZL},
    {"Zp", "Paragraph_Separator", UTF8PROC_CATEGORY_ZP},
    {"Cc", "Control", UTF8PROC_CATEGORY_CC},
    {"Cf", "Format", UTF8PROC_CATEGORY_CF},
    {"Cs", "Surrogate", UTF8PROC_CATEGORY_CS},
    {"Co", "Private_Use", UTF8PROC_CATEGORY_CO},
    {"Cn", "Unassigned", UTF8PROC_CATEGORY_CN},
};
constexpr std::pair<std::string_view, std::string_view> kGroups[] = {
    {"L", "Letter"}, {"M", "Mark"},      {"N", "Number"}, {"P", "Punctuation"},
    {"S", "Symbol"}, {"Z", "Separator"}, {"C", "Other"},  {"LC", "Cased_Letter"}};

using Ranges = std::vector<std::pair<char32_t, char32_t>>;

// By the library's numbers of categories, which are fewer than 32.
const std::array<Ranges, 32>& ranges_of_categories() {
  static const std::array<Ranges, 32> kRanges = [] {
    std::array<Ranges, 32> all;
    for (char32_t c = 0; c <= kLastCharacter; ++c) {
      Ranges& of = all[static_cast<size_t>(utf8proc_category(static_cast<utf8proc_int32_t>(c))) % all.size()];
      if (!of.empty() && of.back().second + 1 == c)
        of.back().second = c;
      else
        of.emplace_back(c, c);
    }
    return all;
  }();
  return kRanges;
}

// Letters, each with its other cases, in order of the first.
const Ranges& other_cases() {
  static const Ranges kPairs = [] {
    Ranges all;
    for (char32_t c = 0; c <= kLastCharacter; ++c) {
      const auto code = static_cast<utf8proc_int32_t>(c);
      for (const utf8proc_int32_t other : {utf8proc_tolower(code), utf8proc_toupper(code)})
        if (other != code) {
          all.emplace_back(c, other);
          all.emplace_back(other, c);
        }
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }();
  return kPairs;
}

}  // namespace

bool CharacterSet::of_category(std::string_view name, CharacterSet& set) {
  for (const std::string_view prefix : {"gc=", "General_Category="})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  if (name == "Any") {
    set.add(0, kLastCharacter);
    return true;
  }
  std::string_view group = name;
  for (const auto& [shorter, longer] : kGroups)
    if (name == longer) group = shorter;
  bool found = false;
  for (const Category& c : kCategories) {
    const bool cased = c.name == "Lu" || c.name == "Ll" || c.name == "Lt";
    const bool of_group = group == "LC" ? cased : group.size() == 1 && c.name[0] == group[0];
    if (!of_group && name != c.name && name != c.long_name) continue;
    const Ranges& ranges = ranges_of_categories()[static_cast<size_t>(c.value)];
    set.ranges_.insert(set.ranges_.end(), ranges.begin(), ranges.end());
    found = true;
  }
  return found;
}

void CharacterSet::add_other_case() {
  normalise();
  const Ranges& pairs = other_cases();
  Ranges added;
  for (const auto& [first, last] : ranges_)
    for (auto at = std::lower_bound(pairs.begin(), pairs.end(), std::pair<char32_t, char32_t>(first, 0));
         at != pairs.end() && at->first <= last; ++at)
      if (at->second < first || at->second > last) added.emplace_back(at->second, at->second);
  ranges_.insert(ranges_.end(), added.begin(), added.end());
}

CharacterSet CharacterSet::complement() const {
  CharacterSet sorted = *this, rest;
  sorted.normalise();
  char32_t next = 0;
  for (const auto& [first, last] : sorted.ranges_) {
    if (first > next) rest.add(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCharacter) rest.add(next, kLastCharacter);
  return rest;
}

const std::vector<std::pair<char32_t, char32_t>>& CharacterSet::ranges() {
  normalise();
  return ranges_;
}

void CharacterSet::normalise() {
  std::sort(ranges_.begin(), ranges_.end());
  size_t kept = 0;
  for (const auto& range : ranges_) {
    if (kept > 0 && range.first <= ranges_[kept - 1].second + 1)
      ranges_[kept - 1].second = std::max(ranges_[kept - 1].second, range.second);
    else
      ranges_[kept++] = range;
  }
  ranges_.resize(kept);
}

}  // namespace quire
