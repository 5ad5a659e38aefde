"""An OAuth 2.1 client for upstreams (MCP, "Authorization").

    challenge, urls, responses         decoding and checks of server responses; pure
    requests                           requests to authorization servers; the only user of authlib
    fetch, discovery, registration     HTTP with authorization servers
    sign_in                            the sign-in of a person (`Browser`), and the sign-out
    grants, token_store                what is stored, and where
    bearer, tokens                     the credentials of transports while the node runs
    loopback                           the browser on this machine, for `interlock login`

Secrets are logged, shown and stored nowhere except in the token store. `authlib` is an extra
(`interlock[oauth]`), imported when the first request is made: a node without sign-ins never loads
it. The client of the official SDK is not used: it sends a refresh token to the MCP server if it has
no metadata in memory, logs responses of the token endpoint, does not check for PKCE, and loads
httpx and pydantic. Tests compare with it instead.
"""
