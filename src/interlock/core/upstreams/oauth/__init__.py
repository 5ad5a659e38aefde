"""OAuth 2.1 client for upstreams, as the authorization part of MCP requires.

    challenge, urls, responses         what servers say, read and checked; pure
    requests                           what is sent to them; the only user of authlib
    fetch, discovery, registration     HTTP with authorization servers
    sign_in                            the whole sign-in, with a person in it (`Browser`); sign-out
    grants, token_store                what is stored, and where
    bearer, tokens                     the credentials of links while the node runs
    loopback                           a browser of this machine, as `login` uses it

Nothing here logs, shows or stores a secret anywhere but in the token store. `authlib` is an extra
(`interlock[oauth]`), imported when the first message is made, so a node without sign-ins never
loads it. Of the official SDK's client parts none is used: they send a refresh token to the MCP
server when its metadata are not in memory, put answers of the token endpoint into log lines, do not
check for PKCE, and load httpx and pydantic. Tests compare with them instead.
"""
