"""
The types of the kernel's requests to rank agents, over ipyparallel's control channel.
"""

SNAPSHOT_REQUEST = "snapshot_request"
"""
Asks for the rank's RankSnapshot.
"""
STATE_REQUEST = "state_request"
"""
Asks for the rank's AgentState, and changes nothing.
"""
RELEASE_REQUEST = "release_request"
"""
Has the rank released. The answer is its AgentState after that.
"""
WAKE_REQUEST = "wake_request"
"""
Has the rank's forgotten waits ended. The answer is the number of threads that were woken.
"""
HOST_INFO_REQUEST = "host_info_request"
"""
Asks for the rank's HostInfo. The request's entry "folder" is the path of a file of the kernel.
"""


def reply_type(request: str) -> str:
    """
    Return the type of the reply to a request: "snapshot_reply" for "snapshot_request".
    """
    return request.removesuffix("request") + "reply"
