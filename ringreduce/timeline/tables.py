"""What the codes and numbers of all ranks' records mean, in tables of the whole job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringreduce.timeline.record_file import CLOCK, NO_ALGORITHM, GroupInfo, RankRecords

UNKNOWN = "?"
CODES = 256


@dataclass(frozen=True)
class Tables:
    """Job-wide tables. Each rank numbers names and groups in an order of its own; here equal ones have one index.

    Attributes:
        names: 0 is "", the name of unnamed operations; "?" stands for numbers that a file does not define.
        undefined: how many records have such a number.
        kinds, dtypes, ops, algorithms: 256 entries each, "?" for a code without a name; algorithms[255] is "".
        differ: ranks whose tables of codes differ from the lowest rank's: another version of ringreduce.
    """

    names: list[str]
    groups: list[GroupInfo]
    name_of: dict[int, np.ndarray]
    group_of: dict[int, np.ndarray]
    undefined: int
    kinds: list[str]
    dtypes: list[str]
    ops: list[str]
    algorithms: list[str]
    differ: list[int]

    @classmethod
    def of(cls, files: Sequence[RankRecords]) -> Tables:
        """name_of and group_of: for each rank, the job-wide index for each of its records, in their order."""
        names: dict[str, int] = {"": 0}
        groups: dict[tuple[str, int, tuple[int, ...]], int] = {}
        infos: list[GroupInfo] = []
        name_of, group_of, undefined = {}, {}, 0
        for file in files:
            used, inverse = np.unique(file.records["name"], return_inverse=True)
            texts = ["" if number == 0 else file.names.get(number, UNKNOWN) for number in used.tolist()]
            indices = np.array([names.setdefault(text, len(names)) for text in texts], np.int32)
            name_of[file.rank] = indices[inverse] if len(used) else np.zeros(0, np.int32)
            unknown = np.array([number != 0 and number not in file.names for number in used.tolist()], bool)
            undefined += int((unknown[inverse] & (file.records["type"] != CLOCK)).sum()) if unknown.any() else 0
            lookup = np.zeros(2**16, np.int32)
            for info in file.groups.values():
                key = info.context, info.id, info.ranks
                if key not in groups:
                    groups[key] = len(groups)
                    infos.append(replace(info, index=groups[key]))
                lookup[info.index] = groups[key]
            group_of[file.rank] = lookup[file.records["group"]]
        first = _codes(files[0])
        return cls(
            names=list(names),
            groups=infos,
            name_of=name_of,
            group_of=group_of,
            undefined=undefined,
            kinds=_padded(first[0]),
            dtypes=_padded(first[1]),
            ops=_padded(first[2]),
            algorithms=[*_padded(first[3])[:NO_ALGORITHM], ""],
            differ=[file.rank for file in files if _codes(file) != first],
        )


def _codes(file: RankRecords) -> tuple[list[str], list[str], list[str], list[str]]:
    return file.kinds, file.dtypes, file.ops, file.algorithms


def _padded(names: Sequence[str]) -> list[str]:
    return [*names[:CODES], *[UNKNOWN] * (CODES - len(names))]
