"""Signing in to upstreams: OAuth 2.1 as a client, the way MCP's authorization document wants it.

    challenge, addresses, scopes, metadata, answers   what servers say, understood; pure
    messages                                          what is sent to them; the edge of authlib
    fetch, discovery, registration                    asking them
    sign_in                                           the whole way, with a human in it (`Browser`)
    grant, wallet                                     what is kept, and where
    bearer, keyring                                   the node's side: tokens for links, in time
    loopback                                          a browser of this machine, as `login` uses it

Nothing here logs, shows or stores a secret anywhere but in the token store. `authlib` is an extra
(`interlock[oauth]`), imported when the first message is made, so a node without sign-ins never
loads it. Of the official SDK's client parts none is used: they send a refresh token to the MCP
server when its metadata are not in memory, put answers of the token endpoint into log lines, do not
check for PKCE, and load httpx and pydantic. They are the yardstick in the tests instead.
"""
