import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { StoreUnavailable } from '../../dist/plants/store.js'
import { lockDirectory } from '../../dist/store/sqljs/disk/lock.js'
import { checkDirectory } from '../../dist/store/sqljs/inspect.js'
import { list, openStore } from '../store/sqljs/fixtures.ts'
import { call, post, type Reply } from '../support/http.ts'
import { type Content, jsonOf, Ledger, plantOf, plantsOf } from '../support/ledger.ts'
import { type ServerProcess, startProcess } from '../support/process.ts'
import { skipUnless } from '../support/scale.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { PATIENCE_MS, until } from '../support/time.ts'
import { verdict } from '../support/verdict.ts'

const OWNER = 'alice'
const WRITERS = 8

/** The first command that works here. */
function works(
  ...commands: readonly (readonly [string, ...string[]])[]
): readonly string[] | undefined {
  return commands.find(
    ([name, ...args]) =>
      spawnSync(name, args, { stdio: 'ignore', timeout: PATIENCE_MS }).status === 0,
  )
}

interface Comparison {
  readonly afterStart?: boolean
  /** Forbids what was refused, too. */
  readonly exactly?: boolean
}

/** Starts the service through a command that becomes it. */
function serve(
  t: TestContext,
  directory: string,
  prefix: readonly string[] = [],
): Promise<ServerProcess> {
  return startProcess(t, directory, {}, ['serve'], { prefix })
}

async function readiness({ adminPort }: ServerProcess): Promise<number> {
  return (await call(adminPort, { path: '/readyz', token: undefined })).status
}

/** One owner's plants, and what became of them. */
class Writer {
  readonly ledger = new Ledger()
  #nextId = 1n

  async create(service: Pick<ServerProcess, 'port'>, chars = 0): Promise<Reply> {
    const plant = plantOf(this.#nextId++, 'x'.repeat(chars))
    this.ledger.sends(OWNER, plant)
    const reply = await post(service.port, jsonOf(plant))
    this.ledger.answered(OWNER, plant, reply.status)
    if (reply.status !== 200) assertUnavailable(reply)
    return reply
  }

  /** Creates from several connections until `enough`, and returns the statuses. */
  async createMany(
    service: ServerProcess,
    chars: number,
    enough: (statuses: readonly number[]) => boolean,
  ): Promise<readonly number[]> {
    const statuses: number[] = []
    const creates = async (): Promise<void> => {
      while (!enough(statuses)) statuses.push((await this.create(service, chars)).status)
    }
    await Promise.all(Array.from({ length: WRITERS }, creates))
    return statuses
  }

  /** The list holds all that was acknowledged and nothing that was not sent. */
  async compare(service: ServerProcess, how: Comparison = {}): Promise<void> {
    const reply = await call(service.port)
    assert.equal(reply.status, 200)
    this.#compareList(plantsOf(reply.text), how)
  }

  #compareList(plants: readonly Content[], { afterStart = false, exactly = false }: Comparison) {
    const { shown } = this.ledger.showsAll(OWNER, plants, afterStart)
    assert.deepEqual([this.ledger.problems, exactly ? shown : []], [[], []])
  }

  /**
   * After a kill, this process starts the store: it lists what was acknowledged, it takes a plant
   * or says that it cannot, and the checker finds nothing wrong.
   */
  async compareAfterKill(directory: string, how: Comparison & { full?: boolean } = {}) {
    const store = await openStore(directory, { lock: lockDirectory })
    this.#compareList(await list(store, OWNER), { ...how, afterStart: true })
    const plant = plantOf(this.#nextId++, 'x'.repeat(60_000))
    if (how.full) await assert.rejects(store.create(OWNER, plant), StoreUnavailable)
    else assert.equal(await store.create(OWNER, plant), 'stored')
    assert.equal(store.unavailableReason() !== undefined, how.full === true)
    await store.close()
    // A check overlooks a torn line while a process holds the directory.
    await checkDirectory(directory)
  }

  /** Writes come back by themselves, and the service is ready again. */
  async comesBack(service: ServerProcess): Promise<void> {
    await until('plants are written again', async () => (await this.create(service)).status === 200)
    await until('the service is ready', async () => (await readiness(service)) === 200)
  }
}

function assertUnavailable(reply: Reply): void {
  assert.equal(verdict(reply), 'storageUnavailable')
  assert.match(String(reply.headers['retry-after']), /^[1-9]\d*$/)
}

// ---- a file system that is really full

const MOUNT = works(
  ['unshare', '-Urm', 'sh', '-c', 'mount -t tmpfs tmpfs /mnt'],
  ['unshare', '-m', 'sh', '-c', 'mount -t tmpfs tmpfs /mnt'],
)

interface Mounted {
  readonly directory: string
  /** The same directory for processes that do not see the mount, such as this one. */
  readonly outside: string
  /** The prefix of a command that is to see the mount. */
  readonly inside: readonly string[]
  run(script: string): string
}

/** A small file system that lives as long as the test. */
async function tmpfs(t: TestContext, size: string): Promise<Mounted> {
  const point = await temporaryDirectory()
  const [command = '', options = ''] = MOUNT ?? []
  const script = `mount -t tmpfs -o size=${size} tmpfs ${point} && echo mounted && exec cat`
  const stdio = ['pipe', 'pipe', 'inherit'] as const
  const holder = spawn(command, [options, 'sh', '-c', script], { stdio: [...stdio] })
  const gone = once(holder, 'exit')
  t.after(() => {
    holder.kill('SIGKILL')
    return gone
  })
  await once(holder.stdout, 'data')
  const user = options.includes('U') ? ['--user', '--preserve-credentials'] : []
  const inside = ['nsenter', '--target', String(holder.pid), '--mount', ...user, '--']
  return {
    directory: join(point, 'data'),
    outside: join(`/proc/${holder.pid}/root`, point, 'data'),
    inside,
    run(script) {
      const [enter = '', ...args] = inside
      const { status, stdout, stderr } = spawnSync(
        enter,
        [...args, 'sh', '-c', `cd ${point} && ${script}`],
        { encoding: 'utf8' },
      )
      assert.equal(status, 0, stderr)
      return stdout
    },
  }
}

/** One refusal is not enough: there may be space for a smaller batch. */
function isFull(statuses: readonly number[]): boolean {
  return statuses.length >= 20 && statuses.slice(-20).every((status) => status === 503)
}

const onTmpfs = { skip: skipUnless(MOUNT !== undefined, 'no tmpfs can be mounted with unshare') }

test('full: a tmpfs filled by creates refuses them, takes them with room', onTmpfs, async (t) => {
  const disk = await tmpfs(t, '3m')
  const writer = new Writer()
  disk.run('head -c 900K /dev/zero > ballast')
  const service = await serve(t, disk.directory, disk.inside)
  assert.equal(await readiness(service), 200)
  const statuses = await writer.createMany(service, 60_000, isFull)
  assert.ok(statuses.filter((status) => status === 200).length > 10, 'the disk took some')
  // A create of another writer may have found room since.
  await until(
    'readiness is red',
    async () =>
      (await writer.create(service, 60_000)).status === 503 && (await readiness(service)) === 503,
  )
  await writer.compare(service, { exactly: true })

  disk.run('rm ballast')
  await writer.comesBack(service)
  await writer.compare(service, { exactly: true })

  await writer.createMany(service, 60_000, isFull)
  await service.kill('SIGKILL')
  await writer.compareAfterKill(disk.outside, { exactly: true, full: true })
  disk.run('! ls data | grep sqlite.*tmp')
})

// ---- calls that fail

const STRACE = works(['strace', '-qq', '-o', '/dev/null', '-e', 'inject=fsync:error=EIO', 'true'])
const traced = {
  skip: skipUnless(STRACE !== undefined, 'strace is missing, or may not trace'),
}
/** The calls that may make bytes durable. */
const MAKE_DURABLE = 'write,pwrite64,writev,pwritev,fsync,fdatasync,sync_file_range'

/** Makes calls of a running process fail until the returned function is called. */
async function inject(t: TestContext, pid: number, calls: string, paths: readonly string[]) {
  const only = paths.flatMap((path) => ['-P', path])
  const fault = ['-e', `inject=${calls}:error=EIO`]
  const args = ['-f', '-o', '/dev/null', ...only, ...fault, '-p', String(pid)]
  const tracer = spawn('strace', args, { stdio: ['ignore', 'ignore', 'pipe'] })
  t.after(() => tracer.kill('SIGTERM'))
  const gone = once(tracer, 'exit')
  let text = ''
  tracer.stderr.setEncoding('utf8').on('data', (chunk: string) => (text += chunk))
  await until('strace is attached', () => text.includes('attached') || tracer.exitCode !== null)
  assert.equal(tracer.exitCode, null, text)
  return async (): Promise<void> => {
    tracer.kill('SIGTERM')
    await gone
  }
}

test('strace: without durability nothing is acknowledged; writes come back', traced, async (t) => {
  const directory = join(await temporaryDirectory(), 'data')
  const journal = join(directory, 'journal-00000001.log')
  const service = await serve(t, directory)
  const writer = new Writer()
  assert.equal((await writer.create(service)).status, 200)
  const paths = [journal, `${journal}.tmp`, directory]
  const lift = await inject(t, service.pid, MAKE_DURABLE, paths)
  const statuses = await writer.createMany(service, 100, (all) => all.length >= 40)
  assert.deepEqual(new Set(statuses), new Set([503]), 'no 200 without durability')
  assert.equal(await readiness(service), 503)
  await writer.compare(service, { exactly: true })
  await lift()
  await writer.comesBack(service)
  await writer.compare(service)
  await service.kill('SIGKILL')
  await writer.compareAfterKill(directory)
})

const onLinux = { skip: process.platform !== 'linux' && '/proc is on Linux alone' }

test('the journal is open with O_DSYNC: a write returns once it is durable', onLinux, async (t) => {
  const { dataDirectory } = await startService(t)
  const journal = join(dataDirectory, 'journal-00000001.log')
  const isJournal = (fd: string): boolean => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`) === journal
    } catch {
      // It was closed meanwhile.
      return false
    }
  }
  const fd = readdirSync('/proc/self/fd').find(isJournal)
  const [, flags = ''] =
    /^flags:\s+([0-7]+)$/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'latin1')) ?? []
  assert.equal(Number.parseInt(flags, 8) & 0o10000, 0o10000)
})
