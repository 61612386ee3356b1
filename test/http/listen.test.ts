import assert from 'node:assert/strict'
import { once } from 'node:events'
import { existsSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer as createHttp } from 'node:http'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { spawnSync } from 'node:child_process'
import { ListenFailed, listen } from '../../dist/http/listen.js'
import { startService, temporaryDirectory } from '../support/service.ts'
import { verdict } from '../support/verdict.ts'
import { firstAnswer, head } from '../support/wire.ts'

async function serverOn(t: TestContext, address: Parameters<typeof listen>[1]): Promise<string> {
  const server = createHttp((_req, res) => res.end())
  t.after(() => server.close())
  return listen(server, address)
}

/** A socket file whose process is gone. */
function leaveStaleSocket(path: string): void {
  spawnSync(process.execPath, ['-e', `require('net').createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`])
  assert.ok(statSync(path).isSocket())
}

test('listen: on a unix socket, for owner and group, removed at the end', async (t) => {
  const path = join(await temporaryDirectory(), 'plants.sock')
  const { close } = await startService(t, { listen: { path } })
  assert.equal(statSync(path).mode & 0o777, 0o660)
  assert.equal(verdict(await firstAnswer(path, head('GET', '/plants'))), 200)
  assert.equal(verdict(await firstAnswer(path, head('GET', '/plants', { token: undefined }))), 'tokenMissing')
  await close()
  assert.equal(existsSync(path), false)
})

test('listen: a stale socket file is replaced', async (t) => {
  const path = join(await temporaryDirectory(), 'plants.sock')
  leaveStaleSocket(path)
  await startService(t, { listen: { path } })
  assert.equal(verdict(await firstAnswer(path, head('GET', '/plants'))), 200)
})

test('listen: a socket that somebody listens on is refused, and left alone', async (t) => {
  const path = join(await temporaryDirectory(), 'plants.sock')
  await startService(t, { listen: { path } })
  await assert.rejects(startService(t, { listen: { path } }), (error) => error instanceof ListenFailed && error.message.includes(`unix:${path}`))
  assert.equal(verdict(await firstAnswer(path, head('GET', '/plants'))), 200)
})

test('listen: a file that is no socket is refused, and left alone', async (t) => {
  const directory = await temporaryDirectory()
  const path = join(directory, 'precious.txt')
  writeFileSync(path, 'precious')
  await assert.rejects(serverOn(t, { path }), ListenFailed)
  const link = join(directory, 'link')
  symlinkSync(path, link)
  await assert.rejects(serverOn(t, { path: link }), ListenFailed)
  assert.equal(readFileSync(path, 'utf8'), 'precious')
  await assert.rejects(serverOn(t, { path: directory }), ListenFailed)
  await assert.rejects(serverOn(t, { path: join(directory, 'no', 'such') }), ListenFailed)
})

test('listen: a port in use is refused, says what to do, and leaves nothing open', async (t) => {
  const taken = createServer().listen(0, '127.0.0.1')
  await once(taken, 'listening')
  t.after(() => taken.close())
  // It listens on TCP.
  const { port } = taken.address() as { readonly port: number }
  const dataDirectory = join(await temporaryDirectory(), 'data')
  for (const overrides of [{ listen: { host: '127.0.0.1', port } }, { adminListen: { host: '127.0.0.1', port } }]) {
    await assert.rejects(startService(t, { ...overrides, dataDirectory }), (error) => error instanceof ListenFailed && error.message === `cannot listen on 127.0.0.1:${port}: another process listens there; stop it or choose another address`)
  }
  const { port: free } = await startService(t, { dataDirectory })
  assert.equal(verdict(await firstAnswer(free, head('GET', '/plants'))), 200)
})

test('listen: the address is given as a URL or a unix: path', async (t) => {
  assert.match(await serverOn(t, { host: '127.0.0.1', port: 0 }), /^http:\/\/127\.0\.0\.1:[0-9]+$/)
  const path = join(await temporaryDirectory(), 'a.sock')
  assert.equal(await serverOn(t, { path }), `unix:${path}`)
})

test('listen: IPv6', async (t) => {
  let url: string
  try {
    url = await serverOn(t, { host: '::1', port: 0 })
  } catch {
    t.skip('this machine has no IPv6')
    return
  }
  assert.match(url, /^http:\/\/\[::1\]:[0-9]+$/)
})
