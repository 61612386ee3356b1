import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { chmodSync, chownSync, cpSync, lstatSync, mkdirSync, readdirSync } from 'node:fs'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { readOrCreateDevKey } from '../../dist/cli/token.js'
import { exportToFile } from '../../dist/store/sqljs/inspect.js'
import { holds } from '../store/sqljs/fixtures.ts'
import { call, post } from '../support/http.ts'
import { freePort } from '../support/ports.ts'
import { MAIN, preload, startProcess } from '../support/process.ts'
import { LONG, sampled } from '../support/scale.ts'
import { ROOT } from '../support/release.ts'
import { temporaryDirectory } from '../support/service.ts'
import { until } from '../support/time.ts'
import { SECRET } from '../support/tokens.ts'
import { verdict } from '../support/verdict.ts'
import { converse, head, Wire } from '../support/wire.ts'

/** The kind and mode of what is in a directory, and of itself. */
function modesIn(directory: string): readonly (readonly [name: string, mode: string])[] {
  return ['.', ...readdirSync(directory)].flatMap((name) => {
    // A listed file may be gone by now.
    const stats = lstatSync(join(directory, name), { throwIfNoEntry: false })
    if (!stats) return []
    const kind = stats.isDirectory() ? 'directory' : stats.isSocket() ? 'socket' : 'file'
    return [[name, `${kind} ${(stats.mode & 0o7777).toString(8)}`] as const]
  })
}

/** Creates enough bytes to rotate the journal and compact it, which creates and removes files. */
async function postLarge(target: number | string, afterEach = () => {}): Promise<void> {
  for (let id = 0; id < 10; id++) {
    assert.equal(verdict(await post(target, { id, name: 'x'.repeat(900_000) })), 200)
    afterEach()
  }
}

for (const umask of sampled([0o000, 0o077], 2)) {
  // One process has them all: a start and ten large plants are most of the time.
  test(`process: with umask ${umask.toString(8)}`, async (t) => {
    const parent = await temporaryDirectory()
    const [deep, data] = [join(parent, 'deep'), join(parent, 'deep/data')]
    const [socket, admin] = [join(parent, 'plants.sock'), join(parent, 'admin.sock')]
    const inspected = await freePort()
    // The thread of a compaction has node's options: with this one, the first ends early.
    const { NODE_OPTIONS: option } = await preload(`
      import { isMainThread, threadId } from 'node:worker_threads'
      if (!isMainThread && threadId === 1) setTimeout(() => { throw new Error('impossible') }, 0)`)
    const env = {
      NODE_OPTIONS: `--insecure-http-parser --inspect-port=127.0.0.1:${inspected}`,
      PLANTS_LISTEN: `unix:${socket}`,
      PLANTS_ADMIN_LISTEN: `unix:${admin}`,
    }
    const before = process.umask(umask)
    t.after(() => process.umask(before))
    const server = await startProcess(t, data, env, ['serve'], { options: [option] })

    readOrCreateDevKey(data)
    await exportToFile(data, join(deep, 'export.sqlite'))

    await t.test('SIGUSR1 starts no inspector', async () => {
      for (let i = 0; i < 3; i++) {
        server.child.kill('SIGUSR1')
        await sleep(100)
      }
      await assert.rejects(Wire.to(inspected), { code: 'ECONNREFUSED' })
      assert.equal((await call(socket)).status, 200)
      assert.ok(!server.output().includes('Debugger listening'), server.output())
    })

    await t.test('no parser is lenient', async () => {
      for (const each of [socket, admin]) {
        const smuggled = head('GET', '/livez', { lines: ['X: a\x01b'] })
        assert.deepEqual((await converse(each, smuggled)).map(verdict), ['malformedRequest'])
      }
    })

    const seen = new Map<string, Set<string>>()
    const look = (): void => {
      for (const [name, mode] of [...modesIn(deep), ...modesIn(data)])
        seen.set(name, (seen.get(name) ?? new Set()).add(mode))
    }

    await t.test('a failed compaction is repeated', async () => {
      await postLarge(socket, look)
      const isCompacted = (): boolean => server.output().includes('"message":"compacted"')
      await until('the journals are compacted', isCompacted)
      assert.match(server.output(), /could not be compacted.*impossible/)
    })

    await t.test('files are private, sockets for the group', async () => {
      const sockets = modesIn(parent).filter(([, mode]) => mode.startsWith('socket'))
      assert.equal(sockets.map(([, mode]) => mode).join(), 'socket 660,socket 660')
      assert.equal(await server.kill('SIGTERM'), 0)
      look()
      for (const name of ['dev.key', 'plants.sqlite', 'journal-00000001.log', 'export.sqlite'])
        assert.ok(seen.has(name), name)
      for (const [name, modes] of seen) {
        const allowed = ['file 600', 'directory 700']
        if (/^(lock|starting)-/.test(name)) allowed.push('socket 600')
        const others = [...modes].filter((mode) => !allowed.includes(mode))
        assert.deepEqual(others, [], name)
      }
    })
  })
}

const HTTP = JSON.stringify(new URL('http/connection.js', pathToFileURL(MAIN)).href)
/** Errors that no code catches: what to run on SIGUSR2. Node treats both alike. */
const IMPOSSIBLE: Readonly<Record<string, string>> = {
  'a throw while a request comes in': `
    const { Connection } = await import(${HTTP})
    process.on('SIGUSR2', () => {
      Connection.prototype.enter = () => { throw new Error('impossible') }
      process.stderr.write('armed\\n')
    })`,
  'an unhandled rejection': `
    process.on('SIGUSR2', () => { void Promise.reject(new Error('impossible')) })`,
}

for (const [name, source] of sampled(Object.entries(IMPOSSIBLE), 2)) {
  test(`process: ${name} ends it with status 1 and loses no plant`, async (t) => {
    const directory = join(await temporaryDirectory(), 'data')
    const server = await startProcess(t, directory, await preload(source))
    assert.equal((await post(server.port, { id: 1, name: 'Fern' })).status, 200)
    server.child.kill('SIGUSR2')
    if (name.includes('request')) {
      await until('the next request will fail', () => server.output().includes('armed'))
      await assert.rejects(post(server.port, { id: 2, name: 'Moss' }))
    }
    assert.equal(await server.exited, 1)
    await until('the cause is on stderr', () => server.output().includes('Error: impossible'))
    await holds(directory, [{ name: 'Fern' }])
  })
}

const tools = spawnSync('unshare', ['--mount', 'setpriv', '--version'])
const canUnshare = process.getuid?.() === 0 && tools.status === 0

test(
  'process: serves unprivileged on a read-only root, and writes only its data',
  { skip: canUnshare ? LONG : 'needs root, unshare and setpriv' },
  async (t) => {
    const work = await temporaryDirectory()
    const data = join(work, 'data')
    mkdirSync(data, { mode: 0o700 })
    chownSync(data, 65_532, 65_532)
    chmodSync(work, 0o755)
    // Copied to where every user can read it: a checkout may be in a home directory.
    for (const name of ['dist', 'node_modules/jose', 'node_modules/sql.js', 'package.json'])
      cpSync(join(ROOT, name), join(work, 'app', name), { recursive: true })
    writeFileSync(join(work, 'node'), '')
    writeFileSync(join(work, 'secret'), SECRET, { mode: 0o400 })
    chownSync(join(work, 'secret'), 65_532, 65_532)
    const script = `
    mount --make-rprivate / && mount --bind ${data} ${data} &&
    mount --bind "$0" ${work}/node && mount -o remount,bind,ro ${work}/node &&
    mount -o remount,bind,ro / && { mount -o remount,bind,ro /tmp 2>/dev/null || true; } &&
    exec setpriv --reuid 65532 --regid 65532 --clear-groups --no-new-privs \\
      --bounding-set=-all --inh-caps=-all ${work}/node "$@"`
    const env = { PLANTS_JWT_SECRET_FILE: join(work, 'secret') }
    const prefix = ['unshare', '--mount', 'sh', '-c', script]
    const main = join(work, 'app/dist/main.js')
    const server = await startProcess(t, data, env, ['serve'], { prefix, main })
    const { pid } = server.child
    const status = readFileSync(`/proc/${pid}/status`, 'utf8')
    assert.match(status, /^Uid:\t65532\t65532\t65532\t65532$/m)
    assert.match(status, /^CapEff:\t0+$/m)
    assert.match(status, /^CapBnd:\t0+$/m)
    assert.match(status, /^NoNewPrivs:\t1$/m)
    assert.match(readFileSync(`/proc/${pid}/mountinfo`, 'utf8'), / \/ ro[, ]/)
    await postLarge(server.port)
    await until('it has compacted', () => server.output().includes('"message":"compacted"'))
    assert.equal(await server.kill('SIGTERM'), 0)
    assert.deepEqual(readdirSync(work).toSorted(), ['app', 'data', 'node', 'secret'])
    assert.ok(readdirSync(data).includes('plants.sqlite'))
    assert.ok(!server.output().includes('"level":"error"'), server.output())
  },
)
