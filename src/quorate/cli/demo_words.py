"""What happened in a demo, in sentences for a person."""

from typing import Any

from quorate.cli.demo_books import Line, Scene


def sentences(scene: Scene, result: dict[str, Any]) -> list[str]:
    """What happened, for a person."""
    order, proof = result["order"], result["proof"]
    words = [
        f"{scene.liar} lied, died, and came back; {order['leader_killed']} ordered everything, "
        f"died, and came back. {order['next_leader']} went on in its place after "
        f"{order['gap_s']:.1f} s.",
        f"Topics that promise to stand a liar lost {result['lost']} events, and delivered "
        f"{result['forged']} forged ones and {result['duplicates']} twice, to a subscriber and to "
        f"the archive. {order['misplaced']} of {order['positions']:,} stand elsewhere than their "
        f"publishers were told.",
        _found_words("scanners", "every site blocked them", result["scanners"]),
        _found_words("silent hosts", "the alert was there", result["silences"]),
        f"Together that is a precision of {result['precision']:.2f} and a recall of "
        f"{result['recall']:.2f}.",
        f"When no replica was running any more, a packet of {scene.shown.source} was proved from "
        f"the archive in {proof['proof_bytes']:,} bytes: the keys alone show that "
        f"{proof['published_by']} published it, and that {', '.join(proof['vouched_for_by'])} "
        f"vouch for its place. Of {proof['changed']} changes of one byte, {proof['refused']} were "
        f"noticed.",
    ]
    if scene.rejected:
        rejected = ", ".join(f"{who} x {count}" for who, count in scene.rejected.most_common(6))
        words.insert(2, f"Subscribers caught and rejected wrong messages: {rejected}.")
    weak = [line for line in scene.lines.values() if not line.tolerates_lies]
    words += [weak_words(line, scene.liar) for line in weak if line.lost or line.forged]
    return [*words, f"The report is in {result['report']}."]


def _found_words(whom: str, what: str, found: dict[str, Any]) -> str:
    wrong = f", and {len(found['wrong'])} wrongly" if found["wrong"] else ""
    words = f"Spark found {found['found']} of {found['there']} {whom}{wrong}"
    if found["p50_s"] is None:
        return f"{words}."
    return (
        f"{words}: {what} {found['p50_s']:.1f} s (median) and at most {found['max_s']:.1f} s after "
        f"it could be known."
    )


def weak_words(line: Line, liar: str) -> str:
    """Why a topic may lose events, and believe what was never published."""
    return (
        f"'{line.name}' promises to stand crashes only, and {liar} lied: that {line.lost} "
        f"events were lost, {line.forged} forged and {line.duplicates} delivered twice, its "
        f"contract allows. The other topics promise more, and take more replicas for it."
    )
