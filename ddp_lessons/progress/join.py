"""
Functions to join the class board and to leave it: one line in a notebook, which is optional.

    join_board("http://192.168.1.20:8642", code="HKRTWX", name="Ada and Grace")

Under a hub whose configuration names the board, each learner is on the board with the login as
name, and `join_board(name="Ada and Grace")` changes the name.

From then on the teacher sees which tasks are solved, tried or open, with which mistake, and the
learner's predictions. No code is sent, and no name but the one that is given here.
"""

import hmac
import secrets
import urllib.parse
from dataclasses import replace

from ddp_lessons.errors import BadInput
from ddp_lessons.progress import board_client, sending

_LONGEST_NAME = 40


def join_board(url: str | None = None, *, code: str = "", name: str) -> None:
    """
    Join the class board under a name of your choice.

    If the board does not answer now, it is asked again in the background.

    Args:
        url: The board's address, which the teacher shows. Default: the board of the hub.
        code: The class code, which the teacher shows beside the address.
        name: Your name on the board, or that of your pair: any name that is not taken.

    Raises:
        BadInput: The address, the code or the name is not accepted. No state is sent.
    """
    name = " ".join(str(name).split())
    if not name or len(name) > _LONGEST_NAME:
        raise BadInput(
            f"No name for the board: expected 1 to {_LONGEST_NAME} characters (got {len(name)}). "
            'Choose one: join_board(..., name="Ada").'
        )
    of_the_hub = board_client.of_the_hub(name) if url is None else None
    member = of_the_hub or _member(url, name, str(code))
    try:
        member.join()
        said = f"you are on the board as {name}"
    except board_client.Refused as error:
        raise BadInput(f"The board did not let you in: {error}") from None
    except board_client.UNREACHABLE:
        said = "the board does not answer yet; what you do is noted, and sent when it does"
    if of_the_hub:
        board_client.forget()  # the hub's token changes, and is in the environment
    else:
        member.save()
    sending.stop_sending()
    sending.keep_sending(anew=True)
    print(said)


def _member(url, name, code):
    parts = urllib.parse.urlsplit(str(url))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(
            f"No address: expected one such as http://192.168.1.20:8642 (got {url!r}). "
            "Copy the line that the board shows."
        )
    known = board_client.saved()
    secret = known.secret if known and known.secret else secrets.token_urlsafe(32)
    # The token is made from a secret and the address. So joining again at an address gives the
    # same token and row, even if the learner has tried a wrong address meanwhile.
    token = hmac.digest(secret.encode(), str(url).rstrip("/").encode(), "sha256").hex()
    if known is not None and known.url == url and known.code:
        token = known.token
    return board_client.Membership(str(url), name, code, token, secret=secret)


def leave_board() -> None:
    """
    Leave the class board: your row is deleted there, and nothing more is sent.
    """
    known = board_client.saved()
    is_half_done = known is not None and known.is_left
    member = known if is_half_done else board_client.membership()
    if member is None:
        print("you are on no board")
        return
    sending.stop_sending()
    replace(member, is_left=True).save()  # keeps the token, which can delete the row later
    try:
        member.leave()
    except board_client.Stranger:
        pass  # the board has no such row
    except (board_client.Refused, *board_client.UNREACHABLE):
        print(
            "nothing more is sent; the board did not answer, so your row is still there: run "
            "leave_board() again later"
        )
        return
    board_client.Membership(url="").save()
    print("you are off the board")
