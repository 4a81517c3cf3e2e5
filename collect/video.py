"""An episode as a video: frames of its replay, with instruction, progress and rewards drawn in."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.collect.replay import step_actions
from retold.schemas.dataset_schema import TaskDescription
from retold.schemas.episode import Episode
from retold.schemas.errors import RetoldError, UsageError
from retold.schemas.instruction import advance
from retold.tasks.drawing import draw_frame
from retold.tasks.registry import make_task

SUFFIXES = (".gif", ".mp4")
_WIDTH = 320
"""Pixels; small frames are enlarged to about this."""
_LINE = 14
_MOST_GOALS = 8


def check_video(path: Path) -> None:
    """Refuse a file that cannot become a video, before anything is played.

    Raises:
        UsageError: its name ends with nothing known, or it exists.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"--video is {path}. Choose a name that ends with {' or '.join(SUFFIXES)}."
        )
    if path.exists():
        raise UsageError(f"{path}: there is such a file. Choose another name, or delete it.")


def write_video(
    path: Path, episode: Episode, task: TaskDescription, frames_per_second: float
) -> int:
    """Replay an episode and write what is seen; returns the number of frames.

    Raises:
        RetoldError: the task draws no frames, or a package is missing.
    """
    try:
        import imageio.v3 as imageio
        import PIL.Image
    except ImportError as error:
        raise RetoldError(
            f"A video needs the package {error.name!r}. Install it with "
            f"`pip install 'retold[video]'`."
        ) from error
    frames = [np.asarray(PIL.Image.fromarray(frame)) for frame in draw_episode(episode, task)]
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    if path.suffix.lower() == ".gif":
        duration = round(1000 / frames_per_second)
        imageio.imwrite(partial, frames, duration=duration, loop=0)
    else:
        _write_mp4(partial, frames, frames_per_second)
    partial.rename(path)
    return len(frames)


def draw_episode(episode: Episode, task: TaskDescription) -> Iterator[NDArray[np.uint8]]:
    """`[height, width, 3]` each, even and of one size: before every transition and after the last."""
    vocabulary = task.vocabulary
    goals = episode.record.instruction
    names = [vocabulary.describe(goal) if vocabulary else str(goal) for goal in goals]
    environment = make_task(task.name, task.kwargs)
    try:
        environment.reset(seed=episode.record.seed, options={"instruction": goals})
        progress, total = 0, 0.0
        yield _add_text(draw_frame(environment), _caption(names, progress, 0, total))
        for step, action in enumerate(step_actions(episode, environment)):
            environment.step(action)
            met = episode.event_goal[episode.event_step == step].tolist()
            progress = advance(goals, progress, met)
            total += float(episode.reward[step])
            yield _add_text(draw_frame(environment), _caption(names, progress, step + 1, total))
    finally:
        environment.close()


def _caption(names: Sequence[str], progress: int, step: int, total: float) -> list[str]:
    """The goals, met ones marked, the current one pointed at; then step and return."""
    lines = [
        f"{'x' if number < progress else '>' if number == progress else ' '} {name}"
        for number, name in enumerate(names[:_MOST_GOALS])
    ]
    if len(names) > _MOST_GOALS:
        lines.append(f"  and {len(names) - _MOST_GOALS} more")
    return [*lines, f"step {step}  return {total:g}"]


def _add_text(frame: NDArray[np.uint8], lines: Sequence[str]) -> NDArray[np.uint8]:
    from PIL import Image, ImageDraw

    scale = max(1, round(_WIDTH / frame.shape[1]))
    picture = frame.repeat(scale, 0).repeat(scale, 1)
    height, width = picture.shape[:2]
    total = height + _LINE * len(lines) + 4
    image = Image.new("RGB", (width + width % 2, total + total % 2), (20, 20, 25))
    image.paste(Image.fromarray(picture), (0, 0))
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((4, height + 2 + _LINE * number), line, (240, 240, 235))
    return np.asarray(image)


def _write_mp4(path: Path, frames: Sequence[NDArray[np.uint8]], frames_per_second: float) -> None:
    from fractions import Fraction

    import av

    rate = Fraction(frames_per_second).limit_denominator(1000)
    height, width = frames[0].shape[:2]
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
