# SPDX-License-Identifier: Apache-2.0
"""What a build of dsakit is made of, as CycloneDX 1.5: the packages of all headers, objects and libraries that its compiler and
linker read, by their own lists (the dependencies that ninja or make keep; LINKER:--dependency-file), and the models beside it.
A file belongs to the Debian package or the Python distribution that installed it; one of neither is named itself. The
same build gives the same text: there is no date and no serial number in it.
Usage: sbom.py SOURCE_DIR BUILD_DIR VERSION MAKE_PROGRAM TARGET..."""

import collections
import email.parser
import hashlib
import json
import pathlib
import platform
import re
import subprocess
import sys
from urllib.parse import quote

OWN_LICENCE = [{"license": {"id": "Apache-2.0"}}]
LINKED = re.compile(r"\.so(\.\d+)*$")  # found again when the program starts; everything else becomes part of it


def output(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout


def inputs(build, make, targets):
    """All files that were read for these targets of CMake."""
    of_target = [f"/{target}.dir/" for target in targets]
    found = set()
    if (build / "build.ninja").exists():
        # Dry, so that its records stay as they are.
        for block in re.split(r"\n(?=\S)", output(make, "-C", str(build), "-n", "-t", "deps")):
            name, *files = block.splitlines() or [""]
            if any(part in f"/{name}" for part in of_target):
                found.update(line.strip() for line in files)
    listings = [path for path in build.rglob("*.o.d") if any(part in str(path) for part in of_target)]
    for listing in [*listings, *(path for target in targets if (path := build / f"{target}.link.d").exists())]:
        words = re.split(r"(?<!\\)\s+", listing.read_text().replace("\\\n", " "))  # "target: file file \"
        found.update(word.replace("\\ ", " ") for word in words if word and not word.endswith(":"))
    return {(build / name).resolve() for name in found}


def debian(files):
    """{file: (package, version, architecture)} of those that dpkg installed."""
    if not pathlib.Path("/var/lib/dpkg/status").exists():
        return {}
    # What moved from / to /usr is listed at either.
    places = {place: file for file in files for place in (str(file), str(file).removeprefix("/usr"))}
    packages = {}
    for line in output("dpkg-query", "-S", *sorted(places)).splitlines():
        package, _, place = line.partition(": ")
        if place in places:
            packages[places[place]] = package.split(", ")[0]
    known = {}
    for line in output("dpkg-query", "-W", "-f", "${binary:Package}\t${Package}\t${Version}\t${Architecture}\n",
                       *sorted(set(packages.values()))).splitlines():  # fmt: skip
        name, package, version, architecture = line.split("\t")
        known[name] = known[package] = (package, version, architecture)
    return {file: known[name] for file, name in packages.items() if name in known}


def licence_of_debian(package):
    copyright = pathlib.Path("/usr/share/doc", package, "copyright")
    text = copyright.read_text(errors="replace") if copyright.exists() else ""
    whole = re.search(r"^Files: \*\n(?:.+\n)*?License: (.+)$", text, re.M)
    if whole:
        return [{"license": {"name": whole[1].strip()}}]
    named = sorted(set(re.findall(r"/usr/share/common-licenses/(\w[\w.-]*\w)", text)))
    named += ["the GCC Runtime Library Exception"] if re.search("runtime library exception", text, re.I) else []
    return [{"license": {"name": f"as its copyright file says, which names {', '.join(named)}"}}] if named else []


def python_distribution(file):
    """(name, version, licences) of what pip installed, from the folder that it installed it into."""
    for folder in file.parents:
        if folder.name in ("site-packages", "dist-packages"):
            for metadata in folder.glob("*.dist-info/METADATA"):
                record = metadata.with_name("RECORD").read_text()
                if f"{file.relative_to(folder)}," in record:
                    head = email.parser.HeaderParser().parsestr(metadata.read_text())
                    classified = [c for c in head.get_all("Classifier", []) if c.startswith("License ::")]
                    said = [head[key] for key in ("License-Expression", "License") if head[key]]
                    names = said[:1] or [c.rpartition(":: ")[2] for c in classified]
                    return head["Name"].lower(), head["Version"], [{"license": {"name": name}} for name in names]
    return None


def component(name, version, licences, purl, files):
    linked = all(LINKED.search(file.name) for file in files)
    use = "loaded when it runs" if linked else "compiled or linked into it"
    entry = {"type": "library", "bom-ref": purl, "name": name, "version": version, "licenses": licences, "purl": purl,
             "properties": [{"name": "dsakit:use", "value": use}]}  # fmt: skip
    return {key: value for key, value in entry.items() if value}


def vendored(root, version_of):
    """What a distribution carries of others in ext/<name>: its version as its own headers define it."""
    text = "".join(path.read_text(errors="replace") for path in sorted(root.rglob("*.h")))
    numbers = [re.search(rf"define \w+_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    version = ".".join(number[1] for number in numbers if number)
    licences = [{"license": {"name": name}} for name in sorted(set(re.findall(r"\* (\w+) License$", text, re.M)))]
    return root.name, version or version_of, licences


def components(files):
    of_debian = debian(files)
    distribution = platform.freedesktop_os_release()["ID"] if of_debian else ""
    parts = collections.defaultdict(list)
    for file in files:
        if file in of_debian:
            name, version, architecture = of_debian[file]
            purl = f"pkg:deb/{distribution}/{quote(name, safe='')}@{quote(version, safe='')}?arch={architecture}"
            parts[name, version, purl].append(file)
        elif found := python_distribution(file):
            name, version, licences = found
            inner = re.match(r".*/ext/[^/]+", str(file))
            if inner:
                name, version, licences = vendored(pathlib.Path(inner[0]), version)
            kind = "generic" if inner else "pypi"
            parts[name, version, f"pkg:{kind}/{quote(name, safe='')}@{version}", json.dumps(licences)].append(file)
        else:
            parts[file.name, "", f"pkg:generic/{quote(file.name, safe='')}"].append(file)
    for (name, version, purl, *licences), owned in sorted(parts.items()):
        yield component(name, version, json.loads(licences[0]) if licences else licence_of_debian(name), purl, owned)


def models(source):
    for weights in sorted((source / "models").glob("*/model.safetensors")):
        yield {"type": "machine-learning-model", "bom-ref": f"model:{weights.parent.name}", "name": weights.parent.name,
               "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(weights.read_bytes()).hexdigest()}],
               "licenses": OWN_LICENCE, "properties": [{"name": "dsakit:use", "value": "data beside it"}]}  # fmt: skip


def main():
    source, build, version, make, *targets = sys.argv[1:]
    source, build = pathlib.Path(source).resolve(), pathlib.Path(build).resolve()
    files = {file for file in inputs(build, make, targets)
             if not (file.is_relative_to(build) or file.is_relative_to(source) and "site-packages" not in file.parts)
             and file.is_file()}  # fmt: skip
    if not files:
        sys.exit(f"sbom: no record of what {' '.join(targets)} were made of in {build}")
    own = {"type": "library", "bom-ref": f"pkg:pypi/dsakit@{version}", "name": "dsakit", "version": version,
           "licenses": OWN_LICENCE, "purl": f"pkg:pypi/dsakit@{version}",
           "properties": [{"name": "dsakit:machine", "value": platform.machine()}]}  # fmt: skip
    parts = [*components(files), *models(source)]
    refs = [part["bom-ref"] for part in parts]
    bom = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": own}, "components": parts,
           "dependencies": [{"ref": own["bom-ref"], "dependsOn": refs}, *({"ref": ref} for ref in refs)]}  # fmt: skip
    print(json.dumps(bom, indent=1))


main()
