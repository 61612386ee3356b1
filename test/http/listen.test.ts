import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync } from 'node:fs'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { networkInterfaces } from 'node:os'
import { basename, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { ListenFailed, listen, SOCKET_PATH_MAX_BYTES } from '../../dist/http/listen.js'
import { systemError } from '../faults/simulated-disk.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { listening } from '../support/serving.ts'
import { token } from '../support/tokens.ts'
import { verdict } from '../support/verdict.ts'
import { firstAnswer, head } from '../support/wire.ts'

const OPTIONS = ['listen', 'adminListen'] as const

async function serverOn(t: TestContext, address: Parameters<typeof listen>[1]): Promise<void> {
  const server = createServer()
  t.after(() => server.close())
  await listen(server, address, 'listen', '0660')
}

type Sockets = Readonly<Record<(typeof OPTIONS)[number], { readonly path: string }>>

/** Paths of sockets for both listeners, in a new folder. */
async function socketPaths() {
  const folder = await temporaryDirectory()
  const [path, adminPath] = [join(folder, 'a.sock'), join(folder, 'b.sock')]
  const options = { listen: { path }, adminListen: { path: adminPath } }
  return { folder, paths: [path, adminPath], options }
}

async function assertBothServed({ listen, adminListen }: Sockets): Promise<void> {
  assert.equal((await firstAnswer(listen.path, head('GET', '/plants'))).status, 200)
  assert.equal((await firstAnswer(adminListen.path, head('GET', '/readyz'))).status, 200)
}

const modeOf = (path: string): number => statSync(path).mode & 0o777

test('listen: both unix sockets are for owner and group, removed at the end', async (t) => {
  const { folder, paths, options } = await socketPaths()
  const { close } = await startService(t, options)
  assert.deepEqual(paths.map(modeOf), [0o660, 0o660])
  await assertBothServed(options)
  await close()
  assert.deepEqual(readdirSync(folder), [])
})

test('listen: the mode of both unix sockets is that of the setting', async (t) => {
  const { paths, options } = await socketPaths()
  const before = process.umask(0o077)
  t.after(() => process.umask(before))
  await startService(t, { ...options, socketMode: '0666' })
  assert.deepEqual(paths.map(modeOf), [0o666, 0o666])
})

test('listen: the socket files of a process that is gone are replaced', async (t) => {
  const { paths, options } = await socketPaths()
  const [first, second] = paths.map((path) => JSON.stringify(path))
  const leave = `const open = (path, then) => require('net').createServer().listen(path, then)
    open(${first}, () => open(${second}, () => process.kill(process.pid, 'SIGKILL')))`
  spawnSync(process.execPath, ['-e', leave])
  for (const path of paths) assert.ok(statSync(path).isSocket())
  await startService(t, options)
  await assertBothServed(options)
})

test('listen: sockets that a process listens on are refused, unchanged', async (t) => {
  const { folder, paths, options } = await socketPaths()
  await startService(t, options)
  const inodes = () => paths.map((path) => statSync(path).ino)
  const before = inodes()
  for (const option of OPTIONS)
    for (const path of paths)
      await assert.rejects(
        startService(t, { [option]: { path } }),
        (error) => error instanceof ListenFailed && error.message.includes(`unix:${path}`),
      )
  assert.deepEqual(inodes(), before)
  assert.deepEqual(readdirSync(folder), ['a.sock', 'b.sock'])
  await assertBothServed(options)
})

test("listen: a stop does not remove another process's socket files", async (t) => {
  const { paths, options } = await socketPaths()
  const { close } = await startService(t, options)
  for (const path of paths) rmSync(path)
  await startService(t, options)
  await close()
  await assertBothServed(options)
})

test('listen: a port in use is refused, and says what to do', async (t) => {
  const port = await listening(t, createServer())
  const data = join(await temporaryDirectory(), 'data')
  for (const option of OPTIONS)
    await assert.rejects(startService(t, { [option]: { host: '127.0.0.1', port }, data }), {
      name: 'ListenFailed',
      message:
        `${option}: cannot listen on 127.0.0.1:${port}: something listens there already; ` +
        'stop it or choose another address',
    })
  const { port: free } = await startService(t, { data })
  assert.equal(verdict(await firstAnswer(free, head('GET', '/plants'))), 200)
})

const MISSING = '/no/such/folder/plants.sock'
for (const [what, address, advice] of [
  ['folder', { path: MISSING }, 'choose a folder that exists, where this user may write'],
  // RFC 5737, section 3: no machine has it.
  ['address', { host: '192.0.2.1', port: 0 }, 'choose an address of this machine'],
  ['name', { host: 'missing.invalid', port: 0 }, 'choose an address of this machine'],
] as const)
  test(`listen: a ${what} that cannot be used is refused, with what to do`, async (t) => {
    await assert.rejects(serverOn(t, address), (error) => {
      assert.ok(error instanceof ListenFailed)
      assert.ok(error.message.startsWith('listen: cannot listen on '), error.message)
      assert.ok(error.message.endsWith(`; ${advice}`), error.message)
      return true
    })
  })

test('listen: the longest socket path that the options allow works', async (t) => {
  const directory = await temporaryDirectory()
  const bytes = SOCKET_PATH_MAX_BYTES
  const path = join(directory, 'é'.padEnd(bytes - directory.length - 2, 's'))
  assert.deepEqual([Buffer.byteLength(path), bytes], [98, 98])
  await startService(t, { listen: { path } })
  assert.equal((await firstAnswer(path, head('GET', '/plants'))).status, 200)
  assert.deepEqual(readdirSync(directory), [basename(path)])
})

test('listen: a file that is no socket is refused, and unchanged', async (t) => {
  const directory = await temporaryDirectory()
  const [file, link, folder] = ['file', 'link', 'folder'].map((name) => join(directory, name))
  assert.ok(file && link && folder)
  writeFileSync(file, 'precious')
  symlinkSync(file, link)
  mkdirSync(folder)
  for (const path of [file, link, folder]) await assert.rejects(serverOn(t, { path }), ListenFailed)
  assert.equal(readFileSync(file, 'utf8'), 'precious')
  assert.deepEqual(readdirSync(directory), ['file', 'folder', 'link'])
})

const hasIPv6 = Object.values(networkInterfaces())
  .flat()
  .some((each) => each?.address === '::1')
for (const host of ['127.0.0.1', 'localhost', '::1']) {
  const skip = host === '::1' && !hasIPv6 ? 'this machine has no IPv6' : false
  test(`listen: plants and admin on ${host}, on free ports`, { skip }, async (t) => {
    const address = { host, port: 0 }
    const service = await startService(t, { listen: address, adminListen: address })
    const at = host === '::1' ? '[::1]' : host
    const headers = { authorization: `Bearer ${token('alice')}` }
    const plants = await fetch(`http://${at}:${service.port}/plants`, { headers })
    assert.deepEqual([plants.status, await plants.text()], [200, '[]'])
    assert.equal((await fetch(`http://${at}:${service.adminPort}/readyz`)).status, 200)
  })
}

for (const [host, url] of [
  ['::', /^http:\/\/0\.0\.0\.0:\d+$/],
  ['::1', undefined],
] as const)
  test(`listen: ${host} on a kernel without IPv6 ${url ? 'is 0.0.0.0' : 'is told'}`, async (t) => {
    const server = createServer()
    t.after(() => server.close())
    const real = server.listen.bind(server)
    t.mock.method(server, 'listen', (address: { readonly host: string; readonly port: number }) => {
      if (!address.host.includes(':')) return real(address)
      process.nextTick(() => server.emit('error', systemError('EAFNOSUPPORT', 'listen')))
      return server
    })
    const served = listen(server, { host, port: 0 }, 'listen', '0660')
    if (url) assert.match((await served).url, url)
    else await assert.rejects(served, /cannot listen on \[::1\]:0: EAFNOSUPPORT/)
  })
