"""A browser without windows, which asks a board in this process."""

import asyncio

import httpx


class BoardClient:
    """Sends requests to an application, and keeps its cookies."""

    def __init__(self, app, base_url, headers=()):
        self.app = app
        self.base_url = base_url
        self.headers = dict(headers)
        self.cookies = httpx.Cookies()

    def get(self, path, **given):
        return self.request("GET", path, **given)

    def post(self, path, **given):
        return self.request("POST", path, **given)

    def request(self, method, path, headers=(), **given):
        async def ask():
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url=self.base_url, cookies=self.cookies) as client:
                answer = await client.request(method, path, headers=self.headers | dict(headers), **given)
                self.cookies = client.cookies
                return answer

        return asyncio.run(ask())
