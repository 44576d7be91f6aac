"""The hub profile: the same methods on pretrained models from the Hugging Face Hub or from folders, a GPU used where there is one."""

from __future__ import annotations

from captioners.profiles.base import Profile, ProfileError
from captioners.profiles.hub.judges import HubJudges
from captioners.profiles.hub.library import Announce, Library, tell
from captioners.profiles.hub.players import CocaSeat, EmbeddedSeat, Gpt2Seat, MaskSeat, PrefixSeat, Table
from captioners.profiles.hub.roles import choose


def profile(device: str, models: str | None = None, checkpoints: tuple[str, ...] = (), announce: Announce = tell) -> Profile:
    """Players and judges in libraries of their own: they share no model. Nothing is fetched or read before it is used."""
    sources = choose(models, checkpoints)
    judged = {role: source for role, source in sources.items() if role.endswith("-judge")}
    library = Library({role: source for role, source in sources.items() if role not in judged}, device, announce)
    judges = Library(judged, device, announce)
    table = Table(library)
    coca = CocaSeat(table)
    seats = {
        "cfg": coca,
        "classifier": Gpt2Seat(table),
        "mc-diffusion": MaskSeat(table) if library.has("mc-diffusion") else EmbeddedSeat(table, "mc-diffusion"),
        "prefix-diffusion": PrefixSeat(table) if library.has("prefix-diffusion") else EmbeddedSeat(table, "prefix-diffusion"),
    }

    def load() -> None:
        for seat in seats.values():
            try:
                seat.load()
            except ProfileError as error:  # its method's card says so too; the others are read all the same
                announce(str(error))

    return Profile("hub", coca, HubJudges(judges), seats, lambda: library.status or judges.status, load)
