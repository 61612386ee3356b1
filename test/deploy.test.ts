import assert from 'node:assert/strict'
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { checkDirectory } from '../dist/store/sqljs/inspect.js'
import { type Config, readConfig } from '../dist/settings/read.js'
import { VARIABLES } from '../dist/settings/table.js'
import { sectionOf } from './support/documents.ts'
import { call, post } from './support/http.ts'
import { FLAGS } from './support/launch.ts'
import { headerLines } from './support/verdict.ts'
import { scrape } from './support/metrics.ts'
import { freePort } from './support/ports.ts'
import { ROOT } from './support/release.ts'
import { MAIN, startProcess } from './support/process.ts'
import { LONG, skipWithout } from './support/scale.ts'
import { DEFAULTS, startService, temporaryDirectory } from './support/service.ts'
import { writeStore } from './support/store-files.ts'
import { until } from './support/time.ts'
import { openStore } from './store/sqljs/fixtures.ts'
import { SECRET, token } from './support/tokens.ts'
import { firstAnswer, head } from './support/wire.ts'

/** For the last snapshot, in addition to the delay and the timeout of a stop. */
const SNAPSHOT_SECONDS = 15
/** Descriptors besides connections, as in the README. */
const OTHER_DESCRIPTORS = 64
/** Of a token; what is longer gets 401. */
const MAX_TOKEN_BYTES = 12_288

const read = (path: string): string => readFileSync(join(ROOT, path), 'utf8')
const secretFile = join(await temporaryDirectory(), 'jwt-secret')
writeFileSync(secretFile, SECRET)
const dockerfile = read('scripts/deploy/Dockerfile')
const unit = read('scripts/deploy/plant-store.service')
/** The examples for Kubernetes. A sidecar stops after its application, which may take 30 s. */
const pods = [
  { kubernetes: read('scripts/deploy/kubernetes.yaml'), applicationSeconds: 30 },
  { kubernetes: read('scripts/deploy/kubernetes-standalone.yaml'), applicationSeconds: 0 },
].map((pod) => ({ ...pod, config: configOfPod(pod.kubernetes) }))

function find(text: string, pattern: RegExp): string {
  const found = pattern.exec(text)?.[1]
  assert.ok(found !== undefined, `${pattern} is not there`)
  return found
}

/** How the service reads the variables that a file sets. */
function configOf(pairs: Iterable<RegExpMatchArray>): Omit<Config, 'keys'> {
  const env = Object.fromEntries([...pairs].map(([, name, value]) => [name, value]))
  const file = env['PLANTS_JWT_SECRET_FILE']
  assert.match(file ?? '', /\/jwt-secret$/)
  return readConfig({ ...env, PLANTS_JWT_SECRET_FILE: secretFile })
}

function configOfPod(kubernetes: string): Omit<Config, 'keys'> {
  return configOf([
    ...find(dockerfile, /^ENV (.*)$/m).matchAll(/(\S+)=(\S+)/g),
    ...kubernetes.matchAll(/\{ name: (PLANTS_\w+), value: "(.*)" \}/g),
  ])
}

const ofUnit = configOf(unit.matchAll(/^Environment=(\w+)=(.*)$/gm))

test('deploy: the examples set only variables that exist', () => {
  const known = new Set<string>(VARIABLES.map(({ name }) => name))
  for (const text of [dockerfile, unit, ...pods.map(({ kubernetes }) => kubernetes)]) {
    const named = text.match(/PLANTS_\w+/g) ?? assert.fail()
    const unknown = named.filter((name) => !known.has(name))
    assert.deepEqual(unknown, [])
  }
})

test('deploy: time to stop and limits fit the configuration', () => {
  const stopSeconds = (config: Omit<Config, 'keys'>): number =>
    config.drainDelay + config.shutdownTimeout + SNAPSHOT_SECONDS
  assert.ok(Number(find(unit, /^TimeoutStopSec=(\d+)$/m)) >= stopSeconds(ofUnit))
  for (const { kubernetes, config, applicationSeconds } of pods) {
    const grace = Number(find(kubernetes, /terminationGracePeriodSeconds: (\d+)$/m))
    assert.ok(grace >= stopSeconds(config) + applicationSeconds)
  }
  assert.ok(Number(find(unit, /^LimitNOFILE=(\d+)$/m)) >= ofUnit.maxConnections + OTHER_DESCRIPTORS)
  const peak = /the default, 256 MiB \| [\d,]+; up to ([\d,]+) MiB of memory/
  const peakMiB = Number(find(read('scripts/deploy/README.md'), peak).replace(',', ''))
  assert.equal(DEFAULTS.maxDataBytes, 256 * 1024 * 1024)
  const ofPods = pods.map(({ kubernetes }) => find(kubernetes, /limits: \{ memory: (\d+)Mi \}/))
  for (const limit of [find(unit, /^MemoryMax=(\d+)M$/m), ...ofPods])
    assert.ok(Number(limit) > peakMiB)
})

test('deploy: probes, ports, users and paths agree with each other', () => {
  // Of the process, not of its issuer: a container that is unhealthy may be replaced.
  const health = '["/usr/local/bin/node", "/plant-store/dist/main.js", "health"]'
  assert.equal(find(dockerfile, /^HEALTHCHECK .* CMD (\[.*\])$/m), health)
  // At a tenth of a core, Node alone takes seconds to start.
  assert.ok(Number(find(dockerfile, /^HEALTHCHECK .*--timeout=(\d+)s /m)) >= 10)
  const user = find(dockerfile, /^USER (\d+):\d+$/m)
  assert.equal(find(dockerfile, /^COPY .*--chown=(\S+) \/empty \/data$/m), `${user}:${user}`)
  for (const { kubernetes, config } of pods) {
    const port = Number(find(dockerfile, /^EXPOSE (\d+)$/m))
    // Every address, also where there is only IPv6.
    assert.deepEqual(config.listen, { host: '::', port })
    assert.ok(config.adminListen !== 'off' && 'port' in config.adminListen)
    assert.equal(config.adminListen.host, '::')
    const admin = config.adminListen.port
    assert.ok(kubernetes.includes(`{ name: admin, containerPort: ${admin} }`))
    const probes = kubernetes.matchAll(/httpGet: \{ path: (\S+), port: (\w+) \}/g)
    const asked = [...probes].map(([, path, name]) => `${path} ${name}`)
    // A sidecar's application starts once the first passes; alone, nothing waits for it.
    const first = kubernetes.includes('restartPolicy: Always') ? '/readyz' : '/livez'
    assert.deepEqual(asked, [`${first} admin`, '/readyz admin', '/livez admin'])
    const ids = kubernetes.matchAll(/(?:runAsUser|runAsGroup|fsGroup): (\d+)$/gm)
    assert.equal([...ids].map(([, id]) => id).join(), `${user},${user},${user}`)
    assert.equal(config.data, find(kubernetes, /\{ name: data, mountPath: (\S+) \}/))
    assert.equal(config.data, find(dockerfile, /^VOLUME (\S+)$/m))
    assert.match(kubernetes, /^ {6}enableServiceLinks: false$/m)
  }
  assert.match(dockerfile, /^ENV MALLOC_MMAP_THRESHOLD_=1048576$/m)
  assert.match(unit, /^Environment=MALLOC_MMAP_THRESHOLD_=1048576$/m)
  // A core dump would hold secret and tokens.
  assert.match(unit, /^LimitCORE=0$/m)
})

test('deploy: with the flags of the unit and the image, Node serves and compacts', async (t) => {
  const command = find(unit, /^ExecStart=\/usr\/bin\/node (.*) serve$/m).split(' ')
  const flags = command.slice(0, -1)
  assert.equal(command.at(-1), '/opt/plant-store/dist/main.js')
  const entry = ['/usr/local/bin/node', ...flags, '/plant-store/dist/main.js']
  assert.deepEqual(JSON.parse(find(dockerfile, /^ENTRYPOINT (.*)$/m)), entry)
  assert.deepEqual(flags, FLAGS)
  const directory = join(await temporaryDirectory(), 'data')
  // An export that was put back: a thread makes a snapshot of it.
  await writeStore(directory, [['alice', '1', 'Fern']])
  const server = await startProcess(t, directory, {}, ['serve'], { options: flags })
  await until('it has compacted', () => server.output().includes('"message":"compacted"'))
  const plant = { id: 2, name: 'Monstera' }
  assert.equal((await post(server.port, plant, { token: token('alice') })).status, 200)
  assert.equal(await server.kill('SIGTERM'), 0)
  assert.match(await checkDirectory(directory), /sound: 2 plants in a snapshot and 1 journal/)
})

test('deploy: the command for the secret makes what the example for Kubernetes mounts', () => {
  const { kubernetes } = pods[1] ?? assert.fail()
  const [, name, key] =
    /^# {3}kubectl create secret generic (\S+) --from-file=(\S+)=\S+$/m.exec(kubernetes) ??
    assert.fail('there is no command')
  for (const pod of pods) assert.equal(find(pod.kubernetes, /secretName: ([\w-]+)/), name)
  const directory = find(kubernetes, /\{ name: secret, mountPath: (\S+), readOnly: true \}/)
  const file = find(kubernetes, /\{ name: PLANTS_JWT_SECRET_FILE, value: "(.*)" \}/)
  assert.equal(file, `${directory}/${key}`)
})

/** A snapshot with one plant, and settings to restore it. */
async function snapshotOfOne() {
  const directory = await temporaryDirectory()
  const store = await openStore(join(directory, 'source'))
  await store.create('alice', { id: 1n, name: 'Fern' })
  await store.close()
  const input = readFileSync(join(directory, 'source/plants.sqlite'))
  return { directory, env: { PLANTS_DATA: join(directory, 'data') }, input }
}

const RESTORE = 'deploy: the restore under systemd runs as the unit does, and stores the plants'

test(RESTORE, { skip: LONG }, async () => {
  const readme = read('scripts/deploy/README.md')
  const [line] = /^ *systemd-run [^]*?< plants\.sqlite$/m.exec(readme) ?? assert.fail('no line')
  const words = [...line.matchAll(/-[pE] (\w+)=(\S+)/g)]
  const given = new Map(words.map(([, name, value]) => [name, value]))
  for (const name of ['DynamicUser', 'StateDirectory', 'StateDirectoryMode'])
    assert.equal(given.get(name), find(unit, new RegExp(`^${name}=(.*)$`, 'm')), name)
  // Without User=, a dynamic user has the name of its unit.
  assert.equal(`${given.get('User')}.service`, 'plant-store.service')
  assert.doesNotMatch(unit, /^User=/m)
  // %S is /var/lib.
  const data = find(unit, /^Environment=PLANTS_DATA=%S(.*)$/m)
  assert.equal(given.get('PLANTS_DATA'), `/var/lib${data}`)

  // The rest of the line, with what this machine has in the place of the unit's files.
  const [, node = '', main = ''] = /^ExecStart=(\S+) .* (\S+) serve$/m.exec(unit) ?? []
  const script = find(line, /sh -c '(.*)' < plants\.sqlite$/)
  assert.ok(script.includes(`${node} ${main} import `))
  const { directory, env, input } = await snapshotOfOne()
  const here = script
    .replace(`${node} ${main}`, `${process.execPath} ${MAIN}`)
    .replaceAll('/tmp/in', join(directory, 'in'))
  const { status, stdout, stderr } = spawnSync('sh', ['-c', here], { env, input })
  assert.equal(status, 0, String(stderr))
  assert.match(String(stdout), /^1 plant read from /)
})

/** Of a pod that holds the volume of a stopped service. */
const restore = read('scripts/deploy/kubernetes-restore.yaml')

test('deploy: the pod for a restore has the volume and the user of the standalone pod', () => {
  const { kubernetes, config } = pods[1] ?? assert.fail()
  const [name, claim] = [/^kind: StatefulSet\nmetadata:\n {2}name: (\S+)$/m, /^ {8}name: (\w+)$/m]
  const claimName = `${find(kubernetes, claim)}-${find(kubernetes, name)}-0`
  assert.equal(find(restore, /claimName: ([\w-]+) /), claimName)
  assert.equal(find(restore, /\{ name: PLANTS_DATA, value: "(.*)" \}/), config.data)
  assert.equal(find(restore, /\{ name: data, mountPath: (\S+) \}/), config.data)
  const shared = ['securityContext:', 'image:', 'limits:', 'capabilities:', 'runAs', 'fsGroup']
  const of = (text: string): string[] =>
    text.split('\n').filter((line) => shared.some((word) => line.trimStart().startsWith(word)))
  const indented = of(restore).map((line) => `    ${line}`)
  assert.deepEqual(indented, of(kubernetes))
})

test('deploy: the commands of the pod for a restore store the plants', async () => {
  const { directory, env, input } = await snapshotOfOne()
  const commands = restore.matchAll(/^# +kubectl exec (?:-i )?plants-restore -- (.*\/in\/.*)$/gm)
  const outputs = [...commands].map(([, command = '']) => {
    const here = command
      .replace('/usr/local/bin/node', process.execPath)
      .replace('/plant-store/dist/main.js', MAIN)
      .replace(' < plants.sqlite', '')
      .replaceAll('/in/', `${directory}/`)
    const { status, stdout, stderr } = spawnSync('sh', ['-c', here], { env, input })
    assert.equal(status, 0, String(stderr))
    return String(stdout)
  })
  assert.equal(outputs.length, 2)
  assert.match(outputs.join(''), /^1 plant read from /)
})

const NO_NGINX =
  LONG || skipWithout('nginx is missing (Debian: apt-get install nginx)', 'nginx', '-v')

/** The port of nginx before a service: the example, and what a section of the guide adds to it. */
async function startNginx(t: TestContext, port: number, heading: string): Promise<number> {
  const [directory, own] = [await temporaryDirectory(), await freePort()]
  const more = find(sectionOf('scripts/deploy/README.md', heading), /^```nginx\n([^]*?)^```/m)
  const example = read('scripts/deploy/nginx.conf')
    .replace('server 127.0.0.1:8080;', `server 127.0.0.1:${port};`)
    .replace('listen 443 ssl;', `listen 127.0.0.1:${own};`)
    .replace(/^ *ssl_.*$/gm, '')
    .replace('  location / {', () => `${more}  location / {`)
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (name) => `${name}_temp_path ${directory}/${name};`,
  )
  const http = `access_log off;\n${temporary.join('\n')}\n${example}`
  const main = `daemon off;\nmaster_process off;\npid ${directory}/pid;\nevents {}\n`
  writeFileSync(join(directory, 'nginx.conf'), `${main}http {\n${http}}\n`)
  const child = spawn('nginx', ['-e', 'stderr', '-c', join(directory, 'nginx.conf')], {
    stdio: ['ignore', 'inherit', 'inherit'],
  })
  t.after(() => child.kill('SIGKILL'))
  await until('nginx listens', () => call(own).then(Boolean, () => false))
  return own
}

const NGINX = 'deploy: nginx passes on the longest token, and keeps its connection'

test(NGINX, { skip: NO_NGINX }, async (t) => {
  const { port, adminPort } = await startService(t)
  const own = await startNginx(t, port, 'Proxies and balancers')
  const padding = (MAX_TOKEN_BYTES - token('alice', { groups: '' }).length) * 0.75
  const longest = token('alice', { groups: 'x'.repeat(Math.floor(padding)) })
  assert.ok(longest.length <= MAX_TOKEN_BYTES && longest.length > MAX_TOKEN_BYTES - 4)
  assert.equal((await call(own, { token: longest })).status, 200)
  // Under a prefix, as the document has it.
  for (const [id, name] of ['Fern', 'Moss'].entries())
    assert.equal((await post(own, { id, name }, { path: '/api/plants' })).status, 200)
  const first = await call(own, { path: '/api/plants?limit=1' })
  const [, next = ''] = /^<(.*)>/.exec(headerLines(first, 'link').join()) ?? []
  const { pathname, search } = new URL(next, 'http://plants.test/api/plants?limit=1')
  assert.equal((await call(own, { path: pathname + search })).text, '[{"name":"Moss"}]')
  assert.equal((await scrape(adminPort)).value('plant_store_connections'), 1)
})

test('deploy: nginx copies a token from another header', { skip: NO_NGINX }, async (t) => {
  const { port } = await startService(t)
  const own = await startNginx(t, port, 'A token in another header')
  const copied = `X-Goog-IAP-JWT-Assertion: ${token('alice')}`
  const statusOf = async (lines: string[], at = own): Promise<number> =>
    (await firstAnswer(at, head('GET', '/plants', { token: undefined, lines }))).status
  assert.equal(await statusOf([copied]), 200)
  // The service itself never reads it.
  assert.equal(await statusOf([copied], port), 401)
  // A token that the proxy did not copy does not count beside it, nor without it.
  const mine = `Authorization: Bearer ${token('alice')}`
  assert.equal(await statusOf([mine, 'X-Goog-IAP-JWT-Assertion: forged']), 401)
  assert.equal(await statusOf([mine]), 400)
})

test('deploy: the example for Docker mounts the folder of the secret, and reads it there', () => {
  const guide = read('scripts/deploy/README.md')
  const [, folder, mounted] = /-v "\$PWD\/([a-z-]+):(\/[a-z-]+):ro"/.exec(guide) ?? []
  assert.ok(folder && mounted)
  assert.match(guide, new RegExp(`PLANTS_JWT_SECRET_FILE=${mounted}/jwt-secret\\b`))
  assert.match(guide, new RegExp(`mkdir ${folder}\`.*mv jwt-secret ${folder}\``))
})

test('deploy: the build context is exactly what the image copies', () => {
  const lines = [...dockerfile.matchAll(/^COPY (?!--from)(.*) \S+$/gm)]
  const copied = lines.flatMap(([, names = '']) => names.split(' '))
  for (const name of copied) assert.ok(existsSync(join(ROOT, name)), name)
  const [first, ...allowed] = read('scripts/deploy/Dockerfile.dockerignore')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'))
  assert.equal(first, '*')
  assert.deepEqual(allowed.map((line) => line.replace(/^!/, '')).sort(), copied.sort())
})

const LIBRARIES = ['sh', '-c', 'dpkg-query -s libc6 && ldd "$0"', process.execPath] as const
const NO_DPKG =
  LONG || skipWithout('this is no Debian, or its node has no libraries', ...LIBRARIES)

test('deploy: the image names its distribution and packages', { skip: NO_DPKG }, async () => {
  const image = await temporaryDirectory()
  const [run] = /^RUN set [^]*?[^\\]$/m.exec(dockerfile) ?? assert.fail()
  const env = { PATH: `${dirname(process.execPath)}:${process.env['PATH']}` }
  const script = run.slice('RUN '.length).replaceAll('/image', image)
  const { status, stderr } = spawnSync('sh', ['-c', script], { env, encoding: 'utf8' })
  assert.deepEqual([status, stderr], [0, ''])
  const copied = readdirSync(image, { recursive: true, encoding: 'utf8' })
  assert.match(readFileSync(join(image, 'etc/os-release'), 'utf8'), /^ID=/m)
  const packages = readFileSync(join(image, 'var/lib/dpkg/status'), 'utf8')
  const ofDebian = { 'libc.so.6': 'libc6', 'libstdc++.so.6': 'libstdc++6' }
  for (const [library, name] of Object.entries(ofDebian)) {
    assert.ok(copied.some((path) => path.endsWith(`/${library}`)))
    const own = packages.split(/\n\n(?=Package: )/).filter((each) => each.includes(`: ${name}\n`))
    assert.match(own[0] ?? '', /^Package: .*\nStatus: install ok installed$[^]*^Version: \d/m)
  }
})

const SYSTEMD = 'systemd-analyze is missing (Debian: apt-get install systemd)'
const NO_SYSTEMD = LONG || skipWithout(SYSTEMD, 'systemd-analyze', '--version')

test('deploy: systemd accepts the unit, and finds little exposed', { skip: NO_SYSTEMD }, () => {
  const file = join(ROOT, 'scripts/deploy/plant-store.service')
  const verify = ['verify', '--recursive-errors=no', file]
  const { stderr } = spawnSync('systemd-analyze', verify, { encoding: 'utf8' })
  // It may only say that node is elsewhere.
  const mayBe = /\/usr\/bin\/node is not executable/
  const own = stderr.split('\n').filter((line) => line.includes('plant-store.service'))
  const others = own.filter((line) => !mayBe.test(line))
  assert.deepEqual(others, [])
  const security = ['security', '--offline=yes', '--no-pager', file]
  const report = execFileSync('systemd-analyze', security, { encoding: 'utf8' })
  assert.ok(Number(find(report, /Overall exposure level for \S+: ([\d.]+)/)) <= 1.5, report)
})
