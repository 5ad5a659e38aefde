"""Small folders of schemas for tests."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

ORDERS = """
    // Orders of a shop.
    syntax = "proto3";
    package shop.v1;
    import "google/api/annotations.proto";
    import "google/api/field_behavior.proto";

    // One order.
    message Order {
      // By what it is known.
      string id = 1 [(google.api.field_behavior) = REQUIRED];
      // How many pieces.
      int32 count = 2;
      // Where it stands.
      OrderState state = 3;
      // What somebody noted.
      optional string note = 4;
      // What was ordered.
      repeated Item items = 5;
    }

    // One thing that was ordered.
    message Item {
      // What it is.
      string article_number = 1;
    }

    // Where an order stands.
    enum OrderState {
      ORDER_STATE_UNSPECIFIED = 0;
      ORDER_STATE_OPEN = 1;
      ORDER_STATE_SENT = 2;
    }

    // Which order is meant.
    message GetOrderRequest {
      // By what it is known.
      string id = 1 [(google.api.field_behavior) = REQUIRED];
      // How much is told of it.
      int32 depth = 2;
    }

    // Orders, for whoever sells.
    service Orders {
      // One order. All of it.
      rpc GetOrder(GetOrderRequest) returns (Order) {
        option (google.api.http) = {get: "/orders/{id}"};
      }
      // Make or change an order.
      rpc PutOrder(Order) returns (Order) {
        option (google.api.http) = {put: "/orders/{id}" body: "*"};
      }
    }
"""

SEARCH: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Search",
    "description": "What the search tool takes.",
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
    "required": ["query"],
}

STORE = """
    openapi: 3.1.0
    info:
      title: Store
      version: 2.3.0
    paths:
      /items/{id}:
        get:
          operationId: getItem
          summary: One item
          parameters:
            - name: id
              in: path
              required: true
              schema: {type: string}
            - name: limit
              in: query
              schema: {type: integer}
          responses:
            200:
              description: The item.
              content:
                application/json:
                  schema: {$ref: '#/components/schemas/StoreItem'}
      /items:
        post:
          operationId: addItem
          requestBody:
            required: true
            content:
              application/json:
                schema: {$ref: '#/components/schemas/StoreItem'}
          responses:
            '201': {description: It is there.}
    components:
      schemas:
        StoreItem:
          type: object
          properties:
            name: {type: string}
            price: {type: number}
          required: [name]
"""


def write_folder(path: Path, files: dict[str, Any]) -> Path:
    """Write these files into a folder: text, or values as JSON."""
    for name, content in files.items():
        one = path / name
        one.parent.mkdir(parents=True, exist_ok=True)
        text = textwrap.dedent(content).lstrip() if isinstance(content, str) else _json(content)
        one.write_text(text, encoding="utf-8")
    return path


def write_shop(path: Path) -> Path:
    """Write a source of each of the three languages."""
    return write_folder(
        path,
        {
            "proto/shop/v1/orders.proto": ORDERS,
            "json/tools/search.schema.json": SEARCH,
            "openapi/store.yaml": STORE,
        },
    )


def _json(content: Any) -> str:
    return json.dumps(content, indent=2) + "\n"
