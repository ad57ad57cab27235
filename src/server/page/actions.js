// ---- What one does with messages ----------------------------------------------------------------------------------

// The first call of the last answer that nobody has told the result of.
function openCall() {
  const at = chat.messages.findLastIndex((m) => m.role === "assistant");
  const told = new Set(chat.messages.slice(at + 1).filter((m) => m.role === "tool").map((m) => m.call));
  if (at < 0 || chat.messages.slice(at + 1).some((m) => m.role === "user")) return undefined;
  return chat.messages[at].calls?.find((c) => c && !told.has(c.id));
}

function send(text) {
  const call = openCall();
  if (call) chat.messages.push({ role: "tool", call: call.id, name: call.name, content: text });
  else chat.messages.push({ role: "user", content: text });
  chat.title ||= text.trim().split("\n")[0].slice(0, 80);
  notify("");
  scrollDown();
  if (openCall()) {
    saveChat(chat);
    showMessages();
  } else {
    generate(chat);
  }
  scrollDown();
}

function retry(message) {
  if (running) return notify("An answer is being written. Esc stops it.");
  chat.messages.length = chat.messages.indexOf(message);
  generate(chat);
}

// What follows an edited message was an answer to another one.
function edit(message) {
  if (running) return notify("An answer is being written. Esc stops it.");
  const view = viewOf(message);
  const area = make("textarea", { "aria-label": "Edit the message", onkeydown: (e) => onEditorKey(e, save, cancel) });
  const cancel = () => {
    editor.replaceWith(...kept);
    view.root.querySelector("[aria-label=Edit]")?.focus();
  };
  const save = () => {
    if (area.value.trim() === "") return;
    chat.messages.length = chat.messages.indexOf(message);
    if (chat.messages.length === 0) chat.title = "";
    send(area.value);
    $("prompt").focus();
  };
  const editor = make("div", { class: "editor" }, area, make("div", {},
    make("button", { type: "button", class: "plain", onclick: cancel }, "Cancel"),
    make("button", { type: "button", class: "filled", onclick: save }, "Send")));
  const kept = [...view.root.children];
  area.value = message.content;
  view.root.replaceChildren(editor);
  area.focus();
}

function onEditorKey(event, save, cancel) {
  if (event.isComposing) return;
  if (event.key === "Escape") {
    event.stopPropagation();
    cancel();
  } else if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    save();
  }
}

// With a message goes what answers it.
function remove(message) {
  if (running) return notify("An answer is being written. Esc stops it.");
  const at = chat.messages.indexOf(message);
  let end = at + 1;
  const gone = { user: ["assistant", "tool"], assistant: ["tool"], tool: [] }[message.role];
  while (gone.includes(chat.messages[end]?.role)) ++end;
  chat.messages.splice(at, end - at);
  if (chat.messages.length === 0) deleteChat(chat.id);
  else saveChat(chat);
  showMessages();
  $("prompt").focus();
}

function exportChats() {
  const chats = listedChats().map((c) => readChat(c.id)).filter((c) => c);
  const text = JSON.stringify({ quire: "chats", chats }, null, 2);
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  make("a", { href: url, download: "quire-chats.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

async function clearChats() {
  const n = listedChats().length;
  const text = `${plural(n, "chat")} of this browser will be gone for good. Export keeps a copy.`;
  if (n === 0 || !(await confirmed("Delete all chats?", text))) return;
  running?.controller.abort();
  for (const c of listedChats()) deleteChat(c.id);
  switchTo(newChat());
}

// ---- Dialogs ------------------------------------------------------------------------------------------------------

// Resolves once the dialog is closed, with whether its filled button was pressed.
function answered(dialog, yes, no) {
  return new Promise((resolve) => {
    let said = false;
    yes.onclick = () => {
      said = true;
      dialog.close();
    };
    no.onclick = () => dialog.close();
    dialog.onclose = () => resolve(said);
    dialog.showModal();
  });
}

function confirmed(title, text) {
  $("confirm-title").textContent = title;
  $("confirm-text").textContent = text;
  return answered($("confirm"), $("confirm-yes"), $("confirm-no"));
}

let askingForKey = null; // whoever asks meanwhile gets the same answer
function askForKey(reason) {
  askingForKey ??= readKey(reason).finally(() => (askingForKey = null));
  return askingForKey;
}

async function readKey(reason) {
  const kept = "It is kept until this tab is closed, and sent to this server only.";
  $("key-reason").textContent = reason ? `${reason}. ${kept}` : kept;
  $("key").value = "";
  const given = await answered($("key-dialog"), $("key-use"), $("key-cancel"));
  const key = $("key").value.trim();
  $("key").value = "";
  if (!given || key === "") return false;
  try {
    sessionStorage.setItem(PREFIX + "key", key);
  } catch {
    return false;
  }
  return true;
}
