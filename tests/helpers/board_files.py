"""Small data sets in the layouts of the boards: TGB's of each kind, and TGB-Seq's."""

import csv
import pickle

import numpy as np

KINDS = ("tgbl-uci", "thgl-made", "tkgl-made", "tkgl-yago", "tkgl-wikidata", "ML-made")
SIZE = 240


def write_rows(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])


def write_board(folder, name):
    """Write the files of a data set; return src, dst, t and the other candidates of its events.

    They are in the board's numbers, by part; an inverse follows its event.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    t = np.sort(rng.integers(0, 150, SIZE)) + 1_600_000_000
    src, dst, kind = rng.integers(0, 9, SIZE), rng.integers(0, 12, SIZE), rng.integers(0, 3, SIZE)
    if name.startswith("ML"):
        return _write_seq(folder, name, src + 20, dst + 1, t, rng)
    if name.startswith("tgbl"):
        rows = [(a, b, f"{c}.0", 0, i) for i, (a, b, c) in enumerate(zip(src, dst, t, strict=True))]
        write_rows(folder / f"{name}_edgelist.csv", "u,i,ts,label,idx", rows)
        dst = dst + src.max() + 1
        keys = list(zip(src, dst, t, strict=True))
    else:
        texts = [("Q{}", "P{}") if name == "tkgl-wikidata" else ("{}", "{}")] * SIZE
        rows = [
            (c, node.format(a), node.format(b + 30), edge.format(r))
            for (node, edge), a, b, c, r in zip(texts, src, dst, t, kind, strict=True)
        ]
        write_rows(folder / f"{name}_edgelist.csv", "timestamp,head,tail,relation_type", rows)
        ids = {}
        for _, head, tail, _ in rows:
            ids.setdefault(head, len(ids))
            ids.setdefault(tail, len(ids))
        src, dst = (np.array([ids[row[i]] for row in rows]) for i in (1, 2))
        if name == "tkgl-wikidata":  # texts are numbered in order of appearance
            kind = np.unique(kind, return_index=True)[1].argsort().argsort()[kind]
            static = [("Q1", "Q99", "P9"), ("Q1", "Q99", rows[0][3])]
            write_rows(folder / f"{name}_static_edgelist.csv", "head,tail,relation_type", static)
        if name.startswith("thgl"):
            types = [(node, int(int(node) >= 30)) for node in ids]
            write_rows(folder / f"{name}_nodetype.csv", "node_id,type", types)
        else:  # an inverse after each event
            src, dst = (np.stack(pair, 1).ravel() for pair in ((src, dst), (dst, src)))
            t, kind = np.repeat(t, 2), np.stack([kind, kind + 3], 1).ravel()
        keys = list(zip(t, src, kind, strict=True))
    everything = np.unique(dst)
    truth = {}
    for key, to in zip(keys, dst, strict=True):
        truth.setdefault(key, set()).add(int(to))
    shares = (0.8, 0.9) if "yago" in name else (0.7, 0.85)
    bounds = [*np.quantile(t, shares), np.inf]
    are_conflicts = name in ("tkgl-made", "tkgl-yago")
    out = {}
    for part, low, high in zip(("val", "test"), bounds[:2], bounds[1:], strict=True):
        own = [i for i in range(len(t)) if low < t[i] <= high]
        others = {
            keys[i]: rng.permutation(np.setdiff1d(everything, [*truth[keys[i]]])) for i in own
        }
        others = {key: each if are_conflicts else each[:6] for key, each in others.items()}
        saved = {
            tuple(map(np.int64, key)): np.array([*truth[key]]) if are_conflicts else each
            for key, each in others.items()
        }
        (folder / f"{name}_{part}_ns.pkl").write_bytes(pickle.dumps(saved))
        out[part] = [(src[i], dst[i], t[i], others[keys[i]].tolist()) for i in own]
    return out


def write_nodes(folder, name):
    """Write a data set of node properties; return time, node, label and share of each row."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    t = np.sort(rng.integers(0, 160, SIZE))
    src, dst = rng.integers(0, 8, SIZE), rng.integers(0, 6, SIZE)
    header = "time,user_id,genre,weight"
    if name == "tgbn-trade":
        header = "year,nation,trading nation,weight"
    rows = [(c, f"x{a}", f"x{b}", 0.5 + c) for a, b, c in zip(src, dst, t, strict=True)]
    write_rows(folder / f"{name}_edgelist.csv", header, rows)
    labels = []
    for end in range(20, 200, 20):  # 160 and 180 are after the last event
        for node in range(8):
            found = [row[2] for row in rows if row[1] == f"x{node}" and end - 40 <= row[0] < end]
            for label in sorted(set(found)):
                labels.append((end, f"x{node}", label, found.count(label) / len(found)))
    write_rows(folder / f"{name}_node_labels.csv", "ts,src,dst,w", labels)
    return labels


def _write_seq(folder, name, src, dst, t, rng):
    split = np.repeat([0, 1, 2], (160, 40, 40))  # equal times lie in two parts
    assert t[159] == t[160] or t[199] == t[200]
    rows = list(zip(src, dst, t, split, strict=True))
    write_rows(folder / f"{name}.csv", "src,dst,time,split", rows)
    negatives = np.array([rng.permutation(np.setdiff1d(dst, [to]))[:6] for to in dst[200:]])
    np.save(folder / f"{name}_test_ns.npy", negatives)
    np.save(folder / f"{name}_edge_feat.npy", rng.random((SIZE, 2), dtype=np.float32))
    np.save(folder / f"{name}_node_feat.npy", rng.random((30, 2), dtype=np.float32))
    (folder / "LICENSE").write_text("CC BY 4.0\n\nThe text.\n")
    test = [(*row[:3], each.tolist()) for row, each in zip(rows[200:], negatives, strict=True)]
    return {"val": [row[:3] for row in rows[160:200]], "test": test}
