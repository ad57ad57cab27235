// ---- Branches -----------------------------------------------------------------------------------------------------
// A chat shows one path of messages. Where Edit or Retry has made another way on, the first message of the path from
// there has a fork, {at, tails}: the messages of every way, but null for the one that is shown (`at`), as those are the
// path's. Tails have forks of their own.

const MOST_BRANCHES = 50; // ways on from one place
const DEEPEST_BRANCH = 20; // forks within tails, as they are read from storage and files

// Takes what follows from a message on away, and returns the fork for the message that comes instead. An answer that
// says nothing is not kept.
function beginBranch(chat, at) {
  const rest = chat.messages.splice(at);
  const fork = rest[0].fork ?? { at: 0, tails: [null] };
  delete rest[0].fork;
  if (!saysSomething(rest[0])) return fork.tails.length > 1 ? fork : undefined;
  fork.tails[fork.at] = rest;
  if (fork.tails.length >= MOST_BRANCHES) fork.tails.shift();
  fork.tails.push(null);
  fork.at = fork.tails.length - 1;
  return fork;
}

function switchBranch(message, step) {
  if (running) return notify("An answer is being written. Esc stops it.");
  const { fork } = message;
  const to = fork.at + step;
  if (!fork.tails[to]) return;
  const from = chat.messages.indexOf(message);
  fork.tails[fork.at] = chat.messages.splice(from);
  delete message.fork;
  showTail(from, fork, to);
  viewOf(chat.messages[from]).root.querySelector(step < 0 ? ".before" : ".after").focus();
}

// Goes on from a place in one of the ways that a fork keeps.
function showTail(from, fork, to) {
  const tail = fork.tails[to];
  fork.tails[to] = null;
  fork.at = to;
  if (fork.tails.length > 1) tail[0].fork = fork;
  chat.messages = chat.messages.slice(0, from).concat(tail);
  saveChat(chat);
  showMessages();
}

// With a message goes what answers it. What follows stays, and where nothing does, another way on is shown.
function withoutMessage(message) {
  const at = chat.messages.indexOf(message);
  let end = at + 1;
  const gone = { user: ["assistant", "tool"], assistant: ["tool"], tool: [] }[message.role];
  while (gone.includes(chat.messages[end]?.role)) ++end;
  chat.messages.splice(at, end - at);
  const { fork } = message;
  const next = chat.messages[at];
  if (!fork) return;
  if (next && !next.fork) {
    next.fork = fork;
  } else if (!next) {
    fork.tails.splice(fork.at, 1);
    showTail(at, fork, Math.min(fork.at, fork.tails.length - 1));
  }
}

// The switch below a message: ‹ 1/2 ›.
function showBranches(element, { fork }) {
  const ways = fork?.tails.length ?? 1;
  element.hidden = ways < 2;
  if (ways < 2) return;
  const [before, text, after] = element.children;
  text.textContent = `${fork.at + 1}/${ways}`;
  before.disabled = fork.at === 0;
  after.disabled = fork.at === ways - 1;
}

function branchSwitch(message) {
  const before = iconButton("before", "The version before", () => switchBranch(message, -1));
  const after = iconButton("after", "The version after", () => switchBranch(message, 1));
  before.classList.add("before");
  after.classList.add("after");
  return make("div", { class: "branches", role: "group", "aria-label": "Versions", hidden: true }, before,
    make("span", {}), after);
}

// A fork as storage or a file has it, or nothing.
function forkFrom(kept, depth) {
  if (depth >= DEEPEST_BRANCH || !Array.isArray(kept?.tails) || kept.tails.length > MOST_BRANCHES) return undefined;
  const tails = kept.tails.map((tail) => (tail === null ? null : messagesFrom(tail, depth + 1)));
  const fits = tails.length > 1 && tails[kept.at] === null && tails.filter((t) => t === null).length === 1;
  return fits && tails.every((t) => t === null || t.length > 0) ? { at: kept.at, tails } : undefined;
}
