import assert from 'node:assert/strict'
import { generateKeyPairSync, X509Certificate } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { AUTHORITY, CERTIFICATE, EXPIRED, KEY, SELF_SIGNED } from '../../support/etcd-pem.ts'
import { run } from '../../support/process.ts'
import { problems, temporaryDirectory } from '../../support/service.ts'
import { SECRET } from '../../support/tokens.ts'

const MINIMUM = {
  PLANTS_ISSUER: 'https://issuer.test',
  PLANTS_AUDIENCE: 'plants',
  PLANTS_JWT_SECRET: SECRET,
}

test('a certificate and a key that cannot serve are named, and end the start', async () => {
  const directory = await temporaryDirectory()
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const files = {
    authority: AUTHORITY,
    certificate: CERTIFICATE,
    bundle: `a comment\n${CERTIFICATE}${AUTHORITY}`,
    expired: EXPIRED,
    selfSigned: SELF_SIGNED,
    key: KEY,
    otherKey: privateKey.export({ type: 'pkcs8', format: 'pem' }),
    noPem: new X509Certificate(CERTIFICATE).raw,
  }
  for (const [name, content] of Object.entries(files)) writeFileSync(join(directory, name), content)
  const env = (ca: string, cert: string, key: string): Record<string, string> => ({
    ...MINIMUM,
    PLANTS_ETCD_ENDPOINTS: 'https://127.0.0.1:1',
    PLANTS_ETCD_CA_FILE: join(directory, ca),
    PLANTS_ETCD_CERT_FILE: join(directory, cert),
    PLANTS_ETCD_KEY_FILE: join(directory, key),
  })
  assert.deepEqual(problems(env('authority', 'certificate', 'key')), [])
  // The chain after the certificate; an authority after another certificate.
  assert.deepEqual(problems(env('bundle', 'bundle', 'key')), [])
  // As etcd --auto-tls makes them: trusted for itself.
  assert.deepEqual(problems(env('selfSigned', 'selfSigned', 'key')), [])
  // It may be the clock that is wrong.
  assert.deepEqual(problems(env('authority', 'expired', 'key')), [])
  const mismatch = 'PLANTS_ETCD_KEY_FILE is not the key of the first certificate'
  assert.deepEqual(problems(env('authority', 'certificate', 'otherKey')), [mismatch])
  assert.deepEqual(problems(env('authority', 'authority', 'key')), [mismatch])
  const noPem = 'cannot be read: there is no PEM in it'
  assert.deepEqual(problems(env('noPem', 'noPem', 'noPem')), [
    `PLANTS_ETCD_CA_FILE ${noPem}`,
    `PLANTS_ETCD_CERT_FILE ${noPem}`,
    `PLANTS_ETCD_KEY_FILE ${noPem}`,
  ])
  const [noCertificate = '', ...more] = problems(env('authority', 'key', 'key'))
  assert.match(noCertificate, /^PLANTS_ETCD_CERT_FILE cannot be read: .*no start line$/)
  assert.deepEqual(more, [])
  const { status, stderr } = await run(['serve'], env('authority', 'certificate', 'otherKey'))
  assert.equal(status, 2)
  assert.ok(stderr.includes(mismatch), stderr)
})
