"""A SuperNode that announces its replies and never uploads them: ``hostile_supernode.py OPTIONS``."""

import sys

from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse
from flwr.supernode.cli import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient


def keep(self: FleetHttpClient, request: PushObjectRequest) -> PushObjectResponse:
    """Say that an object was sent."""
    return PushObjectResponse(stored=True)


FleetHttpClient.PushObject = keep
sys.exit(flower_supernode())
