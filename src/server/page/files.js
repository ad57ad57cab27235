// ---- Files: text that goes with a message, and chats that come and go ---------------------------------------------

const LARGEST_TEXT = 1_000_000; // bytes of a file that goes with a message
const MOST_FILES = 20; // with one message
const LARGEST_IMPORT = 50_000_000;

let attached = []; // [{name, text}, or of pictures {name, url}], for the next message

async function attach(files) {
  for (const file of files) {
    if (attached.length >= MOST_FILES) return notify(`No more than ${MOST_FILES} files go with a message.`, true);
    if (isPicture(file)) {
      await attachPicture(file);
      continue;
    }
    if (file.size > LARGEST_TEXT) {
      notify(`${file.name} is larger than ${plural(LARGEST_TEXT, "byte")}.`, true);
      continue;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new TypeError("binary");
      attached.push({ name: file.name.slice(0, 200), text });
    } catch {
      notify(`${file.name} is no text in UTF-8.`, true);
    }
  }
  showAttached();
}

function showAttached() {
  const chips = attached.map((file) => {
    const remove = iconButton("close", "Take away " + file.name, () => {
      attached = attached.filter((f) => f !== file);
      showAttached();
      $("prompt").focus();
    });
    const shown = file.url ? make("img", { src: file.url, alt: "" }) : null;
    return make("li", {}, shown, make("span", {}, file.name), remove);
  });
  $("attached").replaceChildren(...chips);
  $("attached").hidden = chips.length === 0;
  showComposer();
}

// A message as the model reads it: each file in a fence that nothing in it closes, and then what was written.
function withFiles(m) {
  const parts = (m.files ?? []).filter((f) => !f.url).map(({ name, text }) => {
    let longest = 2;
    for (const [run] of text.matchAll(/`+/g)) longest = Math.max(longest, run.length);
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  if (m.content !== "") parts.push(m.content);
  return parts.join("\n\n");
}

function fileElement({ name, text, url }) {
  if (url) return make("img", { class: "picture", src: url, alt: name, title: name });
  return make("details", { class: "call file" }, make("summary", {}, make("b", {}, name), ` ${plural(text.length,
    "character")}`), make("pre", { tabindex: "0" }, text));
}

function exportChats() {
  const chats = listedChats().map((c) => readChat(c.id)).filter((c) => c);
  const text = JSON.stringify({ quire: "chats", chats }, null, 2);
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  make("a", { href: url, download: "quire-chats.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Chats of a file that Export made. One that is here already, by its id, stays what it is.
async function importChats(file) {
  let chats;
  try {
    if (file.size > LARGEST_IMPORT) throw new Error("too large");
    ({ chats } = JSON.parse(await file.text()));
    if (!Array.isArray(chats)) throw new Error("no chats");
  } catch {
    return notify(`${file.name} is no file of chats that Export made.`, true);
  }
  const here = new Set(listedChats().map((c) => c.id));
  let taken = 0;
  for (const kept of chats.slice(0, MOST_CHATS).reverse()) {
    const read = chatFrom(kept, isText(kept?.id) ? kept.id.slice(0, 40) : newId());
    if (!read || read.messages.length === 0 || here.has(read.id)) continue;
    saveChat(read);
    ++taken;
  }
  notify(`${plural(taken, "chat")} of ${chats.length} came in.`);
}
