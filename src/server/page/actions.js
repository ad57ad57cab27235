// ---- What one does with messages ----------------------------------------------------------------------------------

// The first call of the last answer that nobody has told the result of.
function openCall() {
  const at = chat.messages.findLastIndex((m) => m.role === "assistant");
  const told = new Set(chat.messages.slice(at + 1).filter((m) => m.role === "tool").map((m) => m.call));
  if (at < 0 || chat.messages.slice(at + 1).some((m) => m.role === "user")) return undefined;
  return chat.messages[at].calls?.find((c) => c && !told.has(c.id));
}

// `fork`: the other ways on from where the message goes (branches.js).
function send(text, files, fork) {
  const call = openCall();
  const message = call ? { role: "tool", call: call.id, name: call.name } : { role: "user" };
  message.content = text;
  if (files.length > 0) message.files = files;
  if (fork) message.fork = fork;
  chat.messages.push(message);
  chat.title ||= (text.trim() || files[0]?.name || "").split("\n")[0].slice(0, LONGEST_TITLE);
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
  generate(chat, beginBranch(chat, chat.messages.indexOf(message)));
}

function goOn(message) {
  if (running) return notify("An answer is being written. Esc stops it.");
  answer(chat, message);
}

// What follows an edited message was an answer to another one: it stays, as another branch.
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
    if (running) return notify("An answer is being written. Esc stops it.");
    const fork = beginBranch(chat, chat.messages.indexOf(message));
    if (chat.messages.length === 0 && !chat.renamed) chat.title = "";
    send(area.value, message.files ?? [], fork);
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
  } else if (event.key === "Enter" && !event.shiftKey && !touch.matches) {
    event.preventDefault();
    save();
  }
}

function remove(message) {
  if (running) return notify("An answer is being written. Esc stops it.");
  withoutMessage(message);
  if (chat.messages.length === 0) deleteChat(chat.id);
  else saveChat(chat);
  showMessages();
  $("prompt").focus();
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
