import assert from 'node:assert/strict'
import { once } from 'node:events'
import {
  existsSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { createServer as createHttp } from 'node:http'
import { createServer } from 'node:net'
import { networkInterfaces } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { spawnSync } from 'node:child_process'
import { ListenFailed, listen, SOCKET_PATH_MAX_BYTES } from '../../dist/http/listen.js'
import { startService, temporaryDirectory } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { verdict } from '../support/verdict.ts'
import { firstAnswer, head } from '../support/wire.ts'

async function serverOn(t: TestContext, address: Parameters<typeof listen>[1]): Promise<string> {
  const server = createHttp((_req, res) => res.end())
  t.after(() => server.close())
  return (await listen(server, address, 'listen', '0660')).url
}

/** Leaves a socket file whose process is gone. */
function leaveStaleSocket(path: string): void {
  spawnSync(process.execPath, [
    '-e',
    `require('net').createServer()
      .listen(${JSON.stringify(path)}, () => process.kill(process.pid, 'SIGKILL'))`,
  ])
  assert.ok(statSync(path).isSocket())
}

test('listen: a unix socket is for owner and group, and removed at the end', async (t) => {
  const path = join(await temporaryDirectory(), 'plants.sock')
  const { close } = await startService(t, { listen: { path } })
  assert.equal(statSync(path).mode & 0o777, 0o660)
  assert.equal(verdict(await firstAnswer(path, head('GET', '/plants'))), 200)
  assert.equal(
    verdict(await firstAnswer(path, head('GET', '/plants', { token: undefined }))),
    'tokenMissing',
  )
  await close()
  assert.equal(existsSync(path), false)
})

test('listen: the mode of both unix sockets is that of the setting', async (t) => {
  const folder = await temporaryDirectory()
  const [listen, adminListen] = [{ path: join(folder, 'a') }, { path: join(folder, 'b') }]
  const before = process.umask(0o077)
  t.after(() => process.umask(before))
  await startService(t, { listen, adminListen, socketMode: '0666' })
  for (const { path } of [listen, adminListen]) assert.equal(statSync(path).mode & 0o777, 0o666)
})

test('listen: a stale socket file is replaced', async (t) => {
  const path = join(await temporaryDirectory(), 'plants.sock')
  leaveStaleSocket(path)
  await startService(t, { listen: { path } })
  assert.equal(verdict(await firstAnswer(path, head('GET', '/plants'))), 200)
})

test('listen: a socket that a process listens on is refused, and unchanged', async (t) => {
  const path = join(await temporaryDirectory(), 'plants.sock')
  await startService(t, { listen: { path } })
  await assert.rejects(
    startService(t, { listen: { path } }),
    (error) => error instanceof ListenFailed && error.message.includes(`unix:${path}`),
  )
  assert.equal(verdict(await firstAnswer(path, head('GET', '/plants'))), 200)
})

test('listen: a refused path leaves the socket file and the directory as they were', async (t) => {
  const directory = await temporaryDirectory()
  const path = join(directory, 'plants.sock')
  const { close } = await startService(t, { listen: { path } })
  const { ino } = statSync(path)
  await assert.rejects(startService(t, { listen: { path } }), ListenFailed)
  await assert.rejects(startService(t, { adminListen: { path } }), ListenFailed)
  assert.equal(statSync(path).ino, ino)
  assert.deepEqual(readdirSync(directory), ['plants.sock'])
  await close()
  assert.deepEqual(readdirSync(directory), [])
})

test('listen: the admin listener on a unix socket has the same rules', async (t) => {
  const path = join(await temporaryDirectory(), 'admin.sock')
  leaveStaleSocket(path)
  const { close } = await startService(t, { adminListen: { path } })
  assert.equal(statSync(path).mode & 0o777, 0o660)
  for (const target of ['/livez', '/readyz'])
    assert.equal((await firstAnswer(path, head('GET', target, { token: undefined }))).status, 200)
  await assert.rejects(
    startService(t, { adminListen: { path } }),
    (error) => error instanceof ListenFailed && error.message.includes(`unix:${path}`),
  )
  await close()
  assert.deepEqual(readdirSync(dirname(path)), [])
  writeFileSync(path, 'precious')
  await assert.rejects(startService(t, { adminListen: { path } }), ListenFailed)
  assert.equal(readFileSync(path, 'utf8'), 'precious')
})

test("listen: a stop does not remove another process's socket file", async (t) => {
  const directory = await temporaryDirectory()
  const [listen, adminListen] = [
    { path: join(directory, 'plants.sock') },
    { path: join(directory, 'admin.sock') },
  ]
  const { close } = await startService(t, { listen, adminListen })
  for (const { path } of [listen, adminListen]) rmSync(path)
  await startService(t, { listen, adminListen })
  await close()
  assert.equal(verdict(await firstAnswer(listen.path, head('GET', '/plants'))), 200)
  assert.equal((await firstAnswer(adminListen.path, head('GET', '/livez'))).status, 200)
})

test('listen: an address that cannot be used is refused, with what to do', async (t) => {
  const missing = join(await temporaryDirectory(), 'missing', 'plants.sock')
  const folder = 'choose a folder that exists, where this user may write'
  for (const [address, advice] of [
    [{ path: missing }, folder],
    // RFC 5737, section 3: no machine has it.
    [{ host: '192.0.2.1', port: 0 }, 'choose an address of this machine'],
    [{ host: 'missing.invalid', port: 0 }, 'choose an address of this machine'],
  ] as const) {
    await assert.rejects(serverOn(t, address), (error) => {
      assert.ok(error instanceof ListenFailed)
      assert.ok(error.message.startsWith('listen: cannot listen on '), error.message)
      assert.ok(error.message.endsWith(`; ${advice}`), error.message)
      return true
    })
  }
})

test('listen: the longest socket path that the options allow works', async (t) => {
  const directory = await temporaryDirectory()
  const bytes = SOCKET_PATH_MAX_BYTES
  const path = join(directory, 'é'.padEnd(bytes - directory.length - 2, 's'))
  assert.deepEqual([Buffer.byteLength(path), bytes], [98, 98])
  await startService(t, { listen: { path } })
  assert.equal(verdict(await firstAnswer(path, head('GET', '/plants'))), 200)
  assert.deepEqual(readdirSync(directory), [basename(path)])
})

test('listen: a file that is no socket is refused, and unchanged', async (t) => {
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

test('listen: a port in use is refused, and says what to do', async (t) => {
  const taken = createServer().listen(0, '127.0.0.1')
  await once(taken, 'listening')
  t.after(() => taken.close())
  // It listens on TCP.
  const { port } = taken.address() as { readonly port: number }
  const dataDirectory = join(await temporaryDirectory(), 'data')
  for (const option of ['listen', 'adminListen']) {
    await assert.rejects(
      startService(t, { [option]: { host: '127.0.0.1', port }, data: dataDirectory }),
      (error) =>
        error instanceof ListenFailed &&
        error.message ===
          `${option}: cannot listen on 127.0.0.1:${port}: something listens there already; ` +
            'stop it or choose another address',
    )
  }
  const { port: free } = await startService(t, { data: dataDirectory })
  assert.equal(verdict(await firstAnswer(free, head('GET', '/plants'))), 200)
})

test('listen: the address is reported as a URL or a unix: path', async (t) => {
  assert.match(await serverOn(t, { host: '127.0.0.1', port: 0 }), /^http:\/\/127\.0\.0\.1:[0-9]+$/)
  const path = join(await temporaryDirectory(), 'a.sock')
  assert.equal(await serverOn(t, { path }), `unix:${path}`)
})

test('listen: plants and admin on IPv4 and IPv6, on free ports', async (t) => {
  const hasIPv6 = Object.values(networkInterfaces())
    .flat()
    .some((each) => each?.address === '::1')
  if (!hasIPv6) t.diagnostic('this machine has no IPv6: only IPv4 was tried')
  for (const [host, inUrl] of [
    ['127.0.0.1', '127.0.0.1'],
    ['localhost', 'localhost'],
    ['::1', '[::1]'],
  ] as const) {
    if (host === '::1' && !hasIPv6) continue
    const { port, adminPort } = await startService(t, {
      listen: { host, port: 0 },
      adminListen: { host, port: 0 },
    })
    assert.ok(port > 0 && adminPort > 0 && port !== adminPort)
    const plants = await fetch(`http://${inUrl}:${port}/plants`, {
      headers: { authorization: `Bearer ${token('alice')}` },
    })
    assert.deepEqual([plants.status, await plants.text()], [200, '[]'])
    assert.equal((await fetch(`http://${inUrl}:${adminPort}/readyz`)).status, 200)
  }
})
