"""Fails when a folder includes one to its right: vq < kernels < codegen < runtime < {tests, bench}."""
import pathlib
import re
import sys

ORDER = {"vq": 0, "kernels": 1, "codegen": 2, "runtime": 3, "tests": 4, "bench": 4}
root = pathlib.Path(sys.argv[1])
bad = []
seen = 0
for folder, rank in ORDER.items():
    for path in sorted((root / folder).rglob("*")):
        if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
            continue
        where = path.relative_to(root)
        if where.parts[:2] == ("tests", "golden") or where.parts[:2] == ("tests", "house"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            seen += 1
            target = match.group(1).split("/")[0]
            if target not in ORDER:
                bad.append(f'{where}:{number}: "{match.group(1)}" is not included from the root of the tree')
            elif ORDER[target] > rank or (ORDER[target] == rank == 4 and target != folder):
                bad.append(f"{where}:{number}: {folder} must not include {target}")
            elif not (root / match.group(1)).exists():
                bad.append(f'{where}:{number}: there is no "{match.group(1)}"')
print("\n".join(bad) or f"{seen} includes, all in the right direction")
sys.exit(bool(bad) or seen == 0)
