from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

from tests.harness import oci

_IMAGE = oci.Image("localhost/x:1", ("/bin/sh",))


def _archive(folder: Path, name: str) -> Path:
    program = folder / "program"
    program.write_bytes(b"\x7fELF")
    tree = oci.Tree(("tmp", "bin"), {"bin/program": program}, {"bin/link": "program"})
    oci.write_layer(tree, folder / "layer.tar")
    oci.write_archive(_IMAGE, folder / "layer.tar", folder / name)
    return folder / name


def _json(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    file = archive.extractfile(name)
    assert file
    found: dict[str, Any] = json.load(file)
    return found


def test_every_descriptor_leads_to_its_blob(tmp_path: Path) -> None:
    with tarfile.open(_archive(tmp_path, "image.tar")) as archive:
        index = _json(archive, "index.json")
        entry = index["manifests"][0]
        manifest = _json(archive, _blob(entry))
        config = _json(archive, _blob(manifest["config"]))
        for descriptor in (entry, manifest["config"], *manifest["layers"]):
            file = archive.extractfile(_blob(descriptor))
            assert file
            data = file.read()
            assert descriptor["size"] == len(data)
            assert descriptor["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/x:1"
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    assert config["config"]["Cmd"] == ["/bin/sh"]


def test_an_image_may_name_its_user(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    oci.write_layer(oci.Tree(), layer)
    for user in ("", "65532:65532"):
        image = oci.Image("localhost/x:1", ("/x",), user=user)
        oci.write_archive(image, layer, tmp_path / "image.tar")
        with tarfile.open(tmp_path / "image.tar") as archive:
            entry = _json(archive, "index.json")["manifests"][0]
            config = _json(archive, _blob(_json(archive, _blob(entry))["config"]))
        assert config["config"].get("User", "") == user


def _blob(descriptor: dict[str, Any]) -> str:
    return f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"


def test_the_layer_has_folders_programs_and_links(tmp_path: Path) -> None:
    _archive(tmp_path, "image.tar")
    with tarfile.open(tmp_path / "layer.tar") as layer:
        assert layer.getnames() == ["bin", "tmp", "bin/program", "bin/link"]
        assert layer.getmember("tmp").mode == 0o1777
        assert layer.getmember("bin/program").mode == 0o755
        assert layer.getmember("bin/link").linkname == "program"
        assert {member.uid for member in layer} == {0}


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (tmp_path / "1", tmp_path / "2")
    first.mkdir()
    second.mkdir()
    assert _archive(first, "i.tar").read_bytes() == _archive(second, "i.tar").read_bytes()
