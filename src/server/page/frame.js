// ---- Settings -----------------------------------------------------------------------------------------------------

const settingFields = [...document.querySelectorAll("[data-setting]")];

function showSettings() {
  for (const field of settingFields) {
    const value = chat.settings[field.dataset.setting];
    if (field.type === "checkbox") field.checked = value;
    else field.value = value;
  }
}

function readSettings() {
  for (const field of settingFields)
    chat.settings[field.dataset.setting] = field.type === "checkbox" ? field.checked : field.value;
  store.write("settings", chat.settings);
  saveChat(chat);
}

function resetSettings() {
  chat.settings = { ...DEFAULTS };
  showSettings();
  readSettings();
}

const THEMES = ["system", "light", "dark"];
const keptTheme = () => Math.max(THEMES.indexOf(store.read("theme", "system")), 0);

function showTheme() {
  const theme = THEMES[keptTheme()];
  document.documentElement.dataset.theme = theme;
  $("theme").title = "Colours: " + (theme === "system" ? "as the system has them" : theme);
  $("theme").setAttribute("aria-label", $("theme").title);
}

function nextTheme() {
  store.write("theme", THEMES[(keptTheme() + 1) % THEMES.length]);
  showTheme();
  announce($("theme").title);
}

// ---- The frame around it ------------------------------------------------------------------------------------------

const narrow = matchMedia("(max-width: 860px)");
const touch = matchMedia("(hover: none) and (pointer: coarse)"); // keyboards of phones have no Shift with Enter

function showSidebar(open) {
  document.body.classList.toggle("show-chats", open);
  $("open-sidebar").setAttribute("aria-expanded", String(open));
  $("sidebar").inert = narrow.matches && !open;
  if (open) $("new-chat").focus();
}

function showComposer() {
  const call = openCall();
  const what = call ? `Result of ${call.name}` : "Message";
  $("prompt-label").textContent = what;
  $("prompt").placeholder = call ? what : "Write a message";
  $("stop").hidden = !running;
  $("send").hidden = Boolean(running);
  $("send").disabled = $("prompt").value.trim() === "" && attached.length === 0;
}

function fitPrompt() {
  const area = $("prompt");
  area.style.height = "auto";
  area.style.height = area.scrollHeight + "px";
}

function onSubmit(event) {
  event.preventDefault();
  const text = $("prompt").value;
  if (text.trim() === "" && attached.length === 0) return;
  if (running) return notify("An answer is being written. Esc stops it.");
  const files = attached;
  attached = [];
  $("prompt").value = "";
  fitPrompt();
  showAttached();
  send(text, files);
}

function onKey(event) {
  if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open]")) return;
  if (document.body.classList.contains("show-chats")) {
    showSidebar(false);
    $("open-sidebar").focus();
  } else {
    running?.controller.abort();
  }
}

function onPromptKey(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch.matches) return;
  event.preventDefault();
  $("composer").requestSubmit();
}

// A button that asks for files, of which each may be asked for again.
function onFiles(id, take) {
  const field = $(id + "-file");
  $(id).addEventListener("click", () => field.click());
  field.addEventListener("change", async () => {
    if (field.files.length > 0) await take([...field.files]);
    field.value = "";
  });
}

function listen() {
  $("composer").addEventListener("submit", onSubmit);
  $("prompt").addEventListener("keydown", onPromptKey);
  $("prompt").addEventListener("input", () => { fitPrompt(); showComposer(); });
  $("stop").addEventListener("click", () => { running?.controller.abort(); $("prompt").focus(); });
  $("new-chat").addEventListener("click", () => switchTo(newChat()));
  $("export").addEventListener("click", exportChats);
  $("search").addEventListener("input", showChats);
  onFiles("attach", (files) => attach(files));
  listenForPictures();
  onFiles("import", (files) => importChats(files[0]));
  $("clear").addEventListener("click", clearChats);
  $("theme").addEventListener("click", nextTheme);
  $("open-sidebar").addEventListener("click", () => showSidebar(true));
  $("shade").addEventListener("click", () => showSidebar(false));
  $("open-settings").addEventListener("click", () => $("settings").showModal());
  $("close-settings").addEventListener("click", () => $("settings").close());
  $("settings").addEventListener("input", readSettings);
  $("settings").addEventListener("click", (e) => { if (e.target === $("settings")) $("settings").close(); });
  $("reset-settings").addEventListener("click", resetSettings);
  $("key").addEventListener("keydown", (e) => { if (e.key === "Enter") $("key-use").click(); });
  document.addEventListener("keydown", onKey);
  narrow.addEventListener("change", () => showSidebar(false));
  addEventListener("storage", (e) => { if (e.key === PREFIX + "chats") showChats(); });
  addEventListener("pagehide", () => { if (running) saveChat(running.chat); });
}

const PROPS_NAMES = { repetition_penalty: "repeat_penalty" }; // where `/props` has another name than a request

// What the server says of itself: names of the model, its context, how it samples where one does not say.
async function meet() {
  const models = (await (await ask("v1/models")).json()).data;
  const props = await (await ask("props")).json();
  const [first] = models;
  $("state").dataset.state = "ready";
  $("model-name").textContent = first.id;
  $("model-name").hidden = $("model").hidden = true;
  $("model").replaceChildren(...models.map((m) => make("option", { value: m.id }, m.id)));
  $(models.length > 1 ? "model" : "model-name").hidden = false;
  const room = `${first.id} keeps up to ${plural(first.max_model_len, "token")} in mind.`;
  $("facts").textContent = room + " What you write goes to this server only.";
  const sampling = props.default_generation_settings?.params ?? {};
  showWhatIsTaken(props.modalities?.vision === true);
  contextOf = new Map(models.map((m) => [m.id, m.max_model_len]));
  showGauge();
  for (const name of SAMPLING)
    document.querySelector(`[data-setting=${name}]`).placeholder = sampling[PROPS_NAMES[name] ?? name] ?? "";
  document.querySelector("[data-setting=seed]").placeholder = "random";
  document.querySelector("[data-setting=max_tokens]").placeholder = "what fits";
}

// Until the server has told, or has refused to.
let connecting = false;
async function connect() {
  if (connecting) return;
  connecting = true;
  while (connecting) {
    try {
      await meet();
      connecting = false;
    } catch (failure) {
      showTrouble(failure);
      connecting = failure.status < 400 || failure.status === 503;
    }
    if (connecting) await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

function showTrouble(failure) {
  $("state").dataset.state = failure.status === 503 ? "loading" : "gone";
  $("model-name").textContent = failure.message;
  $("model-name").hidden = false;
  $("model").hidden = true;
}

showTheme();
listen();
switchTo(readChat(store.read("current", "")) ?? newChat());
connect();
