// ---- Colours of code ----------------------------------------------------------------------------------------------
// Comments, strings, numbers and words that a language has for itself: enough to read code by. One pass, forward only.

const LONGEST_COLOURED = 60_000; // characters; longer code is shown in one colour

const C_WORDS = `auto bool break case catch char class const constexpr continue default delete do double else enum
  explicit extern false final float for friend goto if inline int long namespace new noexcept nullptr operator override
  private protected public return short signed sizeof static struct switch template this throw true try typedef typename
  union unsigned using virtual void volatile while NULL size_t`;
const JS_WORDS = `abstract any as async await boolean break case catch class const continue debugger default delete do
  else enum export extends false finally for from function get if implements import in instanceof interface let new null
  number of private protected public readonly return set static string super switch this throw true try type typeof
  undefined unknown var void while with yield`;
const PYTHON_WORDS = `False None True and as assert async await break case class continue def del elif else except
  finally for from global if import in is lambda match nonlocal not or pass raise return self try while with yield`;
const SHELL_WORDS = `case cd do done echo elif else esac exit export fi for function if in local read return set shift
  source then unset until while sudo`;
const SQL_WORDS = `add all alter and as asc begin between by case check column commit constraint create cross default
  delete desc distinct drop else end exists foreign from full group having in index inner insert into is join key left
  like limit not null on or order outer primary references returning right rollback select set table then union unique
  update using values view when where with`;
const RUST_WORDS = `as async await bool break char const continue crate dyn else enum extern f32 f64 false fn for i8 i16
  i32 i64 if impl in isize let loop match mod move mut pub ref return self Self static str struct super trait true type
  u8 u16 u32 u64 unsafe use usize where while`;
const GO_WORDS = `any bool break byte case chan const continue default defer else error fallthrough false for func go
  goto if import int int64 interface map nil package range return rune select string struct switch true type uint var`;
const JAVA_WORDS = `abstract boolean break byte case catch char class const continue default do double else enum extends
  false final finally float for fun if implements import in instanceof int interface internal is long namespace new null
  object open override package private protected public record return sealed short static string super switch this throw
  throws true try using val var virtual void when while`;
const RUBY_WORDS = `and begin break case class def do else elsif end ensure false for if in module next nil not or
  require rescue return self super then true unless until when while yield puts`;
const LUA_WORDS = `and break do else elseif end false for function if in local nil not or repeat return then true until
  while`;

// How a language writes comments (to the end of a line, and between two marks) and strings.
function languageOf(words, line, block, quotes, ignoresCase = false) {
  return { words: new Set(words.split(/\s+/)), line, block, quotes, ignoresCase };
}
const C_LIKE = [["//"], ["/*", "*/"], "\"'"];
const LANGUAGES = new Map();
for (const [names, value] of [
  ["c cpp c++ cc h hpp cuda cu glsl", languageOf(C_WORDS, ...C_LIKE)],
  ["js javascript jsx ts typescript tsx mjs", languageOf(JS_WORDS, ["//"], ["/*", "*/"], "\"'`")],
  ["python py python3", languageOf(PYTHON_WORDS, ["#"], null, "\"'")],
  ["sh bash shell zsh console dockerfile", languageOf(SHELL_WORDS, ["#"], null, "\"'")],
  ["sql", languageOf(SQL_WORDS, ["--"], ["/*", "*/"], "\"'", true)],
  ["rust rs", languageOf(RUST_WORDS, ["//"], ["/*", "*/"], "\"")],
  ["go golang", languageOf(GO_WORDS, ["//"], ["/*", "*/"], "\"'`")],
  ["java kotlin kt cs csharp scala swift php dart", languageOf(JAVA_WORDS, ...C_LIKE)],
  ["ruby rb", languageOf(RUBY_WORDS, ["#"], null, "\"'")],
  ["json json5 jsonc", languageOf("true false null", ["//"], ["/*", "*/"], "\"")],
  ["yaml yml toml ini cmake make makefile", languageOf("true false null yes no on off", ["#"], null, "\"'")],
  ["css scss", languageOf("important from to and not", [], ["/*", "*/"], "\"'")],
  ["html xml svg", languageOf("", [], ["<!--", "-->"], "\"")],
  ["lua", languageOf(LUA_WORDS, ["--"], null, "\"'")],
]) for (const name of names.split(" ")) LANGUAGES.set(name, value);

// Where a string that begins at `from` ends: at its mark, or at the end of its line where it may not go beyond it.
function endOfString(code, from) {
  const quote = code[from];
  const long = quote.repeat(3);
  if (quote !== "`" && code.startsWith(long, from)) {
    const end = code.indexOf(long, from + 3);
    return end < 0 ? code.length : end + 3;
  }
  for (let at = from + 1; at < code.length; ++at) {
    if (code[at] === "\\") ++at;
    else if (code[at] === quote) return at + 1;
    else if (code[at] === "\n" && quote !== "`") return at;
  }
  return code.length;
}

function endOfComment(code, at, { line, block }) {
  if (block && code.startsWith(block[0], at)) {
    const end = code.indexOf(block[1], at + block[0].length);
    return end < 0 ? code.length : end + block[1].length;
  }
  if (!line.some((mark) => code.startsWith(mark, at))) return 0;
  const end = code.indexOf("\n", at);
  return end < 0 ? code.length : end;
}

// [kind, end] of what begins at a place: of a kind, or of none ("").
function tokenAt(code, at, rules) {
  const comment = endOfComment(code, at, rules);
  if (comment > 0) return ["comment", comment];
  if (rules.quotes.includes(code[at])) return ["string", endOfString(code, at)];
  const word = /[A-Za-z_$][\w$]*|\d[\w.]*/y;
  word.lastIndex = at;
  const found = word.exec(code)?.[0];
  if (!found) return ["", at + 1];
  const known = rules.words.has(rules.ignoresCase ? found.toLowerCase() : found);
  return [/\d/.test(found[0]) ? "number" : known ? "keyword" : "", at + found.length];
}

// Code as texts and spans. A language that is not known stays in one colour.
function highlighted(code, name) {
  const rules = LANGUAGES.get(name.toLowerCase());
  if (!rules || code.length > LONGEST_COLOURED) return [code];
  const nodes = [];
  let plain = 0;
  for (let at = 0; at < code.length;) {
    const [kind, end] = tokenAt(code, at, rules);
    if (kind !== "") {
      nodes.push(code.slice(plain, at), make("span", { class: "code-" + kind }, code.slice(at, end)));
      plain = end;
    }
    at = end;
  }
  nodes.push(code.slice(plain));
  return nodes;
}
