// ---- Pictures that go with a message, where the model takes them ---------------------------------------------------

const LARGEST_PICTURE = 30_000_000; // bytes of a file
const SMALL_PICTURE = 300_000; // kept and sent as it is
const LONGEST_SIDE = 1536; // of what is made of a larger one

let takesPictures = false; // what the server says

const isPicture = (file) => takesPictures && /^image\/(png|jpeg|webp|gif)$/.test(file.type);
const isPictureUrl = (value) => isText(value) && /^data:image\/(png|jpeg|webp|gif);base64,/.test(value);

function dataUrlOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

// Browsers keep a few million characters of chats: large pictures are made smaller.
async function pictureUrl(file) {
  if (file.size > LARGEST_PICTURE) throw new RangeError("too large");
  const bitmap = await createImageBitmap(file); // which fails where the file is no picture
  if (file.size <= SMALL_PICTURE) {
    bitmap.close();
    return dataUrlOf(file);
  }
  const factor = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = make("canvas", { width: Math.max(1, Math.round(bitmap.width * factor)),
    height: Math.max(1, Math.round(bitmap.height * factor)) });
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.85);
}

async function attachPicture(file) {
  try {
    attached.push({ name: (file.name || "Picture").slice(0, 200), url: await pictureUrl(file) });
  } catch {
    notify(`${file.name || "This"} is no picture that can be read.`, true);
  }
}

// A content as the API takes it: pictures stand in front of the text.
function contentOf(m) {
  const pictures = (m.files ?? []).filter((f) => f.url);
  const text = withFiles(m);
  if (pictures.length === 0) return text;
  const parts = pictures.map((f) => ({ type: "image_url", image_url: { url: f.url } }));
  if (text !== "") parts.push({ type: "text", text });
  return parts;
}

// Files that were dropped on the page, or pasted where one writes.
function takeDropped(event, files) {
  if (files.length === 0) return;
  event.preventDefault();
  attach([...files]);
}

function listenForPictures() {
  $("prompt").addEventListener("paste", (e) => {
    // Office programs put a picture of a text beside the text that was copied.
    if (e.clipboardData?.getData("text/plain")) return;
    const files = [...(e.clipboardData?.files ?? [])].filter(isPicture);
    takeDropped(e, files);
  });
  document.addEventListener("dragover", (e) => {
    if (e.dataTransfer?.types.includes("Files")) e.preventDefault();
  });
  document.addEventListener("drop", (e) => takeDropped(e, e.dataTransfer?.files ?? []));
}

function showWhatIsTaken(vision) {
  takesPictures = vision;
  const what = vision ? "Attach pictures or text files" : "Attach text files";
  $("attach").title = what;
  $("attach").setAttribute("aria-label", what);
}
