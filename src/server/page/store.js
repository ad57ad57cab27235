// ---- What the browser keeps ---------------------------------------------------------------------------------------
// Chats lie in localStorage, one by one, with a list of them; the key in sessionStorage, which ends with the tab.

const MOST_CHATS = 200;
const MOST_CHARACTERS = 4_000_000; // of all chats together; browsers keep some five million
const LONGEST_TITLE = 80;
const PREFIX = "quire.";

const store = {
  read(name, otherwise) {
    try {
      return JSON.parse(localStorage.getItem(PREFIX + name)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  write(name, value) {
    try {
      localStorage.setItem(PREFIX + name, JSON.stringify(value));
      return true;
    } catch {
      return false; // full, or switched off
    }
  },
  remove(name) {
    try {
      localStorage.removeItem(PREFIX + name);
    } catch {
      // switched off: there is nothing to remove
    }
  },
};

function newId() {
  return Array.from(crypto.getRandomValues(new Uint32Array(3)), (n) => n.toString(36)).join("");
}

const STATS = ["prompt", "cached", "tokens", "accepted", "rejected", "first", "rate"]; // of an answer
const isText = (value) => typeof value === "string";

// What is kept may come from another version of this page, or from nowhere at all.
const readChat = (id) => chatFrom(store.read("chat." + id, null), id);

function chatFrom(kept, id) {
  if (!Array.isArray(kept?.messages)) return null;
  const title = isText(kept.title) ? kept.title.slice(0, LONGEST_TITLE) : "";
  const settings = settingsFrom(kept.settings);
  return { id, title, renamed: kept.renamed === true, messages: messagesFrom(kept.messages, 0), settings };
}

function messagesFrom(kept, depth) {
  if (!Array.isArray(kept)) return [];
  const messages = kept.filter((m) => ["user", "assistant", "tool"].includes(m?.role) && isText(m.content));
  for (const m of messages) {
    for (const name of ["reasoning", "error", "finish"]) if (!isText(m[name])) delete m[name];
    if (!Array.isArray(m.calls) || !m.calls.every((c) => isText(c?.name) && isText(c.arguments))) delete m.calls;
    const isFile = (f) => isText(f?.name) && (f.url === undefined ? isText(f.text) : isPictureUrl(f.url));
    if (!Array.isArray(m.files) || !m.files.every(isFile)) delete m.files;
    if (!STATS.every((name) => Number.isFinite(m.stats?.[name]))) delete m.stats;
    m.fork = forkFrom(m.fork, depth);
    if (!m.fork) delete m.fork;
  }
  return messages;
}

function settingsFrom(kept) {
  const settings = { ...DEFAULTS };
  for (const name of Object.keys(settings))
    if (typeof kept?.[name] === typeof settings[name]) settings[name] = kept[name];
  return settings;
}

function listedChats() {
  const list = store.read("chats", []);
  return Array.isArray(list) ? list.filter((c) => isText(c?.id) && isText(c?.title)) : [];
}

function saveChat(chat) {
  if (chat.messages.length === 0) return;
  const text = JSON.stringify(chat);
  const list = listedChats().filter((c) => c.id !== chat.id);
  list.unshift({ id: chat.id, title: chat.title, size: text.length });
  const size = () => list.reduce((sum, c) => sum + (c.size || 0), 0);
  while (list.length > MOST_CHATS || (list.length > 1 && size() > MOST_CHARACTERS))
    store.remove("chat." + list.pop().id);
  let kept = store.write("chat." + chat.id, chat);
  while (!kept && list.length > 1) {
    store.remove("chat." + list.pop().id);
    kept = store.write("chat." + chat.id, chat);
  }
  if (!kept || !store.write("chats", list)) notify("The browser has no room to keep this chat.", true);
  showChats();
}

function deleteChat(id) {
  store.remove("chat." + id);
  store.write("chats", listedChats().filter((c) => c.id !== id));
  showChats();
}
