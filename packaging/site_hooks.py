"""Files that documents link to and that lie beside them become part of the site."""
import pathlib

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
# As documents name them, and where the site has them.
BESIDE = {
    "../models/README.md": "demo-models.md",
    "../dist/grafana-dashboard.json": "files/grafana-dashboard.json",
    "../dist/quire.service": "files/quire.service",
}


def on_files(files, config):
    for link, name in BESIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / link.removeprefix("../"))))
    return files


def on_page_markdown(markdown, page, config, files):
    for link, name in BESIDE.items():
        markdown = markdown.replace(f"]({link})", f"]({name})")
    return markdown
