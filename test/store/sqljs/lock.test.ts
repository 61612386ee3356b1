import assert from 'node:assert/strict'
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, cpSync, existsSync, mkdirSync, readdirSync, rmSync, statSync } from 'node:fs'
import { symlinkSync, writeFileSync } from 'node:fs'
import { connect, Server, Socket } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, test } from 'node:test'
import { DirectoryLocked, isLocked, lockDirectory } from '../../../dist/store/sqljs/disk/lock.js'
import { systemError } from '../../faults/simulated-disk.ts'
import { sampled, skipUnless, THOROUGH } from '../../support/scale.ts'
import { temporaryDirectorySync } from '../../support/directories.ts'
import { until } from '../../support/time.ts'

const ROUNDS = Number(process.env['PLANTS_TEST_ROUNDS'] ?? (THOROUGH ? 10 : 1))
const OTHER_USER = 65534 // a user id
const children = new Set<ChildProcess>()
const root = temporaryDirectorySync()
after(() => children.forEach((child) => child.kill('SIGKILL')))

let directories = 0
function directory(): string {
  const dir = join(root, `d${directories++}`)
  mkdirSync(dir)
  return dir
}

const LOCK = new URL('../../../dist/store/sqljs/disk/lock.js', import.meta.url).href
const IMPORT = `import { lockDirectory } from ${JSON.stringify(LOCK)}`

/** How long starters that are to begin at the same instant wait for it without a sleep. */
const SPIN_MS = 5
/** Says ready, waits for each time to start at, says the result, and stops once stdin ends. */
const STARTER = `
  ${IMPORT}
  let lock
  process.stdout.write('ready\\n')
  process.stdin.on('data', (start) => setTimeout(async () => {
    while (Date.now() < Number(start)) {}
    try {
      lock = await lockDirectory(process.argv[1])
      process.stdout.write('holds\\n')
    } catch (error) {
      process.stdout.write(error.constructor.name + ' ' + error.message + '\\n')
    }
  }, Number(start) - Date.now() - ${SPIN_MS}))
  process.stdin.on('end', () => lock ? lock.release().then(process.exit) : process.exit())`

type Starter = Awaited<ReturnType<typeof starter>>

/** Runs a script with this argument, as a module. */
function spawned(script: string, dir: string, prefix: readonly string[] = [], uid?: number) {
  const node = [process.execPath, '--input-type=module', '-e', script, dir]
  const [command = '', ...args] = [...prefix, ...node]
  const user = uid === undefined ? {} : { uid }
  const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'], ...user })
  children.add(child)
  return child
}

/** A process that stops as after a clean stop, or is killed. */
async function starter(dir: string, prefix?: readonly string[], uid?: number) {
  const child = spawned(STARTER, dir, prefix, uid)
  const gone = once(child, 'exit')
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const line = async () => String((await lines.next()).value)
  child.stdin.on('error', () => {})
  assert.equal(await line(), 'ready')
  return {
    child,
    line,
    begin: (time: number) => child.stdin.write(String(time)),
    async release() {
      child.stdin.end()
      assert.deepEqual(await gone, [0, null])
    },
    async kill() {
      child.kill('SIGKILL')
      await gone
    },
  }
}

async function holder(dir: string, prefix?: readonly string[]): Promise<Starter> {
  const process = await starter(dir, prefix)
  process.begin(0)
  assert.equal(await process.line(), 'holds')
  return process
}

async function assertLocked(dir: string): Promise<void> {
  const who = 'another process, or by another service of this one: stop that first'
  const other = 'choose another directory (PLANTS_DATA, or the option data)'
  const message = `${dir} is in use by ${who}, or ${other}`
  await assert.rejects(lockDirectory(dir), { name: 'DirectoryLocked', message })
  assert.equal(await isLocked(dir), true)
}

test('lock: a second holder in the same process is refused, until the first releases', async () => {
  const dir = directory()
  assert.equal(await isLocked(dir), false)
  const lock = await lockDirectory(dir)
  const socket = statSync(join(dir, 'lock-1'))
  assert.ok(socket.isSocket())
  assert.equal(socket.mode & 0o777, 0o600, 'only the owner may use it')
  await assertLocked(dir)
  assert.deepEqual(readdirSync(dir), ['lock-1'])
  await lock.release()
  assert.deepEqual(readdirSync(dir), ['lock-1'], 'the highest name is never removed')
  // Not every tool copies sockets: Node's cpSync refuses them.
  const copy = `${dir}-copy`
  cpSync(dir, copy, { recursive: true })
  await (await lockDirectory(copy)).release()
  assert.equal(await isLocked(dir), false)
  await (await lockDirectory(dir)).release()
  assert.deepEqual(readdirSync(dir), ['lock-2'])
})

for (const code of ['EIO', 'EPERM', 'ENOTSUP'])
  test(`lock: ${code} as unix sockets are missing is told, and leaves no file`, async (t) => {
    const dir = directory()
    t.mock.method(Server.prototype, 'listen', function (this: Server, { path }: { path: string }) {
      // As exFAT leaves one.
      writeFileSync(path, '')
      process.nextTick(() => this.emit('error', systemError(code, 'listen')))
      return this
    })
    const what = 'this file system has no unix sockets, which the lock needs: choose another'
    await assert.rejects(lockDirectory(dir), new RegExp(`${code}: .*; ${what}`))
    assert.deepEqual(readdirSync(dir), [])
  })

test('lock: a stopped holder still holds it, and with a full backlog too', async () => {
  const dir = directory()
  const other = await holder(dir)
  other.child.kill('SIGSTOP')
  await assertLocked(dir)
  // The backlog is 511 connections, or the system's limit where that is lower.
  const sockets = Array.from({ length: 600 }, () =>
    connect({ path: join(dir, 'lock-1') }).on('error', () => {}),
  )
  await until('the backlog is full', () => sockets.some((socket) => socket.destroyed))
  await assertLocked(dir)
  for (const socket of sockets) socket.destroy()
  await other.kill()
  await (await lockDirectory(dir)).release()
})

test('lock: a holder that dies while it is connected to was one', async (t) => {
  const dir = directory()
  const lock = await lockDirectory(dir)
  t.mock.method(Socket.prototype, 'connect', function (this: Socket) {
    process.nextTick(() => this.destroy(systemError('ECONNRESET', 'connect')))
    return this
  })
  await assertLocked(dir)
  t.mock.restoreAll()
  await lock.release()
})

test('lock: works if a socket path is too long, at every length around the limit', async () => {
  const parent = directory()
  for (const length of [80, 81, 82, 83, 98, 99, 100, 101, 102, 107, 108, 109, 250, 600]) {
    let dir = join(parent, String(length))
    while (dir.length < length)
      dir = join(dir, 'x'.repeat(Math.max(1, Math.min(200, length - dir.length - 1))))
    mkdirSync(dir, { recursive: true })
    const lock = await lockDirectory(dir)
    await assertLocked(dir)
    assert.ok(readdirSync(dir).includes('lock-1'), `${length} bytes`)
    await lock.release()
    assert.equal(await isLocked(dir), false)
  }
})

test('lock: the highest number counts, not the last name, beyond 2^53 too', async () => {
  const dir = directory()
  writeFileSync(join(dir, 'lock-9'), '')
  writeFileSync(join(dir, 'lock-10'), '')
  const others = ['lock-', 'lock-011', 'lock-12.bak', 'lock-x', 'plants.sqlite', 'starting-x']
  // The last one is of a starter that died.
  for (const name of [...others, 'starting-0123456789abcdef']) writeFileSync(join(dir, name), '')
  await (await lockDirectory(dir)).release()
  assert.deepEqual(readdirSync(dir).sort(), [...others, 'lock-11'].sort())
  writeFileSync(join(dir, 'lock-9007199254740993'), '')
  const lock = await lockDirectory(dir)
  assert.ok(readdirSync(dir).includes('lock-9007199254740994'))
  await assertLocked(dir)
  await lock.release()
})

test('lock: a connection that fails without being refused is no free lock', async () => {
  const dir = directory()
  symlinkSync('lock-1', join(dir, 'lock-1'))
  await assert.rejects(lockDirectory(dir), { code: 'ELOOP' })
  await assert.rejects(isLocked(dir), { code: 'ELOOP' })
  assert.deepEqual(readdirSync(dir), ['lock-1'])
  await assert.rejects(lockDirectory(join(dir, 'none')), { code: 'ENOENT' })
  writeFileSync(join(dir, 'file'), '')
  await assert.rejects(lockDirectory(join(dir, 'file')), { code: 'ENOTDIR' })
})

const MAY_CHANGE_USER =
  process.getuid?.() === 0 && spawnSync(process.execPath, ['-v'], { uid: OTHER_USER }).status === 0
const asOther = { skip: skipUnless(MAY_CHANGE_USER, 'cannot start this Node as another user') }

test('lock: the socket of another user is no free lock', asOther, async () => {
  const shared = directory()
  chmodSync(root, 0o755)
  chmodSync(shared, 0o777)
  const lock = await lockDirectory(shared)
  const other = await starter(shared, [], OTHER_USER)
  other.begin(0)
  const line = await other.line()
  assert.ok(line.startsWith(`Error connect EACCES ${shared}/lock-1`), line)
  await lock.release()
  assert.deepEqual(readdirSync(shared), ['lock-1'])
})

/** Takes the lock, and does this with the random name of a starter as often as it is seen. */
async function lockMeanwhile(dir: string, meet: (name: string) => void): Promise<void> {
  let isDone = false
  const look = (): void => {
    for (const name of readdirSync(dir)) if (name.startsWith('starting-')) meet(join(dir, name))
    if (!isDone) setImmediate(look)
  }
  look()
  const lock = await lockDirectory(dir).finally(() => (isDone = true))
  await lock.release()
}

test('lock: a starter whose random name is removed before it links starts over', async () => {
  const dir = directory()
  let removed = 0
  await lockMeanwhile(dir, (name) => removed++ < 3 && rmSync(name, { force: true }))
  assert.ok(removed > 0)
  assert.deepEqual(readdirSync(dir), ['lock-1'])
})

test('lock: a starter that others overtook starts over', async () => {
  const dir = directory()
  await lockMeanwhile(dir, () => existsSync(`${dir}/lock-3`) || writeFileSync(`${dir}/lock-2`, ''))
  assert.deepEqual(readdirSync(dir), ['lock-3'])
})

test('lock: of thirty starters in one process one wins', async () => {
  const dir = directory()
  for (let round = 0; round < ROUNDS; round++) {
    const results = await Promise.allSettled(Array.from({ length: 30 }, () => lockDirectory(dir)))
    const lost = results.filter(
      (result) => result.status === 'rejected' && result.reason instanceof DirectoryLocked,
    )
    assert.equal(lost.length, 29)
    assert.equal(await isLocked(dir), true)
    for (const result of results) if (result.status === 'fulfilled') await result.value.release()
  }
})

test('lock: a held lock keeps no process alive, and neither does a connection to it', async () => {
  const dir = directory()
  const script = `${IMPORT}; await lockDirectory(process.argv[1])
    console.log(1); setTimeout(() => {}, 100)`
  const child = spawned(script, dir)
  await once(child.stdout, 'data')
  const socket = connect({ path: join(dir, 'lock-1'), allowHalfOpen: true }).on('error', () => {})
  const [code] = await once(child, 'exit')
  assert.equal(code, 0)
  socket.destroy()
})

/** Lets starters begin at the same instant. Resolves with the one that holds the lock. */
async function winnerOf(starters: readonly Starter[]): Promise<Starter> {
  const start = Date.now() + 30
  for (const each of starters) each.begin(start)
  const said = await Promise.all(starters.map((each) => each.line()))
  const [winner, ...others] = starters.filter((_, index) => said[index] === 'holds')
  assert.ok(winner && others.length === 0, said.join('; '))
  for (const line of said) assert.match(line, /^(holds$|DirectoryLocked )/)
  return winner
}

const UNSHARE = ['unshare', '-pfn', '--kill-child']
const canUnshare = spawnSync('unshare', [...UNSHARE.slice(1), 'true']).status === 0
if (!canUnshare) console.log('SKIPPED: in and out of namespaces: unshare does not work')

/** unshare ends first, and the kernel kills its child after it. */
function untilFree(dir: string): Promise<void> {
  return until('the directory is free', async () => !(await isLocked(dir)))
}

for (const others of canUnshare ? sampled([UNSHARE, []], 2) : [[]])
  test(`lock: of four processes at once (${others.join(' ')}) one wins each time`, async () => {
    const dir = directory()
    const start = (i: number): Promise<Starter> => starter(dir, i % 2 === 0 ? [] : others)
    const starters = await Promise.all([0, 1, 2, 3].map(start))
    for (let round = 0; round < ROUNDS; round++)
      for (const end of ['kill', 'release'] as const) {
        const winner = await winnerOf(starters)
        assert.ok(!readdirSync(dir).some((name) => name.startsWith('starting-')))
        await winner[end]()
        await untilFree(dir)
        const at = starters.indexOf(winner)
        // The losers try again, and another process takes the place of the one that ended.
        starters[at] = await start(at)
      }
    await winnerOf(starters)
    for (const each of starters) await each.kill()
  })
