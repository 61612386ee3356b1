import {
  constants,
  createECDH,
  createHmac,
  createPrivateKey,
  createPublicKey,
  type KeyObject,
  sign,
} from 'node:crypto'
import { SECRET } from '../tokens.ts'

/*
 * All keys are fixed, so that what was sent can be sent again. None protects anything.
 */

type Json = Readonly<Record<string, unknown>>

/** The header that goes with a key and an algorithm, and how it signs. */
export type Signer = readonly [header: Json, sign: (input: string) => Buffer]

function text(bytes: Buffer): string {
  return bytes.toString('base64url')
}

function number(value: bigint): string {
  const digits = value.toString(16)
  return text(Buffer.from(digits.length % 2 === 0 ? digits : `0${digits}`, 'hex'))
}

/** By Euclid's algorithm. */
function inverse(value: bigint, modulus: bigint): bigint {
  let [a, b, x, y] = [modulus, value % modulus, 0n, 1n]
  while (b !== 0n) [a, b, x, y] = [b, a % b, y, x - (a / b) * y]
  return (x + modulus) % modulus
}

/** Of 2048 bits, of two primes that can be written down. */
function rsaKey(): KeyObject {
  const [p, q, e] = [3n * 2n ** 1022n + 1037n, 2n ** 1024n - 105n, 65537n]
  const d = inverse(e, (p - 1n) * (q - 1n))
  return createPrivateKey({
    format: 'jwk',
    key: {
      kty: 'RSA',
      n: number(p * q),
      e: number(e),
      d: number(d),
      p: number(p),
      q: number(q),
      dp: number(d % (p - 1n)),
      dq: number(d % (q - 1n)),
      qi: number(inverse(q, p)),
    },
  })
}

function ecKey(curve: string, crv: string, d: Buffer): KeyObject {
  const ecdh = createECDH(curve)
  ecdh.setPrivateKey(d)
  const point = ecdh.getPublicKey().subarray(1)
  return createPrivateKey({
    format: 'jwk',
    key: {
      kty: 'EC',
      crv,
      d: text(d),
      x: text(point.subarray(0, d.length)),
      y: text(point.subarray(d.length)),
    },
  })
}

// RFC 8410 §7: the bytes before the 32 of a private key of Ed25519 in PKCS #8.
const ed25519 = createPrivateKey({
  format: 'der',
  type: 'pkcs8',
  key: Buffer.concat([Buffer.from('302e020100300506032b657004220420', 'hex'), Buffer.alloc(32, 7)]),
})
const rsa = rsaKey()
const p256 = ecKey('prime256v1', 'P-256', Buffer.alloc(32, 9))
const p384 = ecKey('secp384r1', 'P-384', Buffer.alloc(48, 9))
const p521 = ecKey('secp521r1', 'P-521', Buffer.alloc(66, 1))

const ecdsa =
  (hash: string, key: KeyObject) =>
  (input: string): Buffer =>
    sign(hash, Buffer.from(input), { key, dsaEncoding: 'ieee-p1363' })
const pkcs1 =
  (hash: string) =>
  (input: string): Buffer =>
    sign(hash, Buffer.from(input), rsa)
const pss =
  (hash: string) =>
  (input: string): Buffer =>
    sign(hash, Buffer.from(input), {
      key: rsa,
      padding: constants.RSA_PKCS1_PSS_PADDING,
      saltLength: constants.RSA_PSS_SALTLEN_DIGEST,
    })
const hmac =
  (secret: string) =>
  (input: string): Buffer =>
    createHmac('sha256', secret).update(input).digest()

export const SECRET_SIGNERS: readonly Signer[] = [[{ alg: 'HS256' }, hmac(SECRET)]]

export const PUBLIC_SIGNERS: readonly Signer[] = [
  [{ alg: 'EdDSA', kid: 'ed' }, (input) => sign(null, Buffer.from(input), ed25519)],
  [{ alg: 'ES256', kid: 'ec' }, ecdsa('sha256', p256)],
  [{ alg: 'RS256', kid: 'rsa' }, pkcs1('sha256')],
  [{ alg: 'PS256', kid: 'rsa' }, pss('sha256')],
  [{ alg: 'ES384', kid: 'ec 384' }, ecdsa('sha384', p384)],
  [{ alg: 'ES512', kid: 'ec 521' }, ecdsa('sha512', p521)],
  [{ alg: 'RS512', kid: 'rsa' }, pkcs1('sha512')],
  [{ alg: 'PS384', kid: 'rsa' }, pss('sha384')],
  // One key of the set fits each algorithm.
  [{ alg: 'ES256' }, ecdsa('sha256', p256)],
  [{ alg: 'RS256' }, pkcs1('sha256')],
]

const PUBLIC_KEYS = Object.entries({
  ed: ed25519,
  ec: p256,
  rsa,
  'ec 384': p384,
  'ec 521': p521,
}).map(([kid, key]) => ({ ...createPublicKey(key).export({ format: 'jwk' }), kid }))
export const KEY_SET = JSON.stringify({ keys: PUBLIC_KEYS })

/**
 * Signers that no configuration trusts, whatever they name: public keys taken for secrets, a key
 * for another algorithm's, signatures of another form.
 */
export function forgers(trusted: readonly Signer[]): readonly Signer[] {
  const pem = String(createPublicKey(rsa).export({ type: 'spki', format: 'pem' }))
  const forged: Signer[] = [
    [{ alg: 'HS256' }, hmac('')],
    [{ alg: 'HS512' }, hmac(SECRET)],
    [{ alg: 'RS256' }, hmac(SECRET)],
    [{ alg: 'none' }, hmac(SECRET)],
    [{ alg: 'none' }, () => Buffer.alloc(0)],
    [{ alg: 'HS256', kid: 'rsa' }, hmac(pem)],
    [{ alg: 'HS256', kid: 'ed' }, hmac(JSON.stringify(PUBLIC_KEYS[0]))],
    [{ alg: 'RS256', kid: 'rsa' }, hmac(pem)],
    [{ alg: 'RS256', kid: 'ec' }, pkcs1('sha256')],
    [{ alg: 'RS256', kid: '' }, pkcs1('sha256')],
    [{ alg: 'RS1', kid: 'rsa' }, pkcs1('sha1')],
    [{ alg: 'ES256', kid: 'ec' }, (input) => sign('sha256', Buffer.from(input), p256)],
    [{ alg: 'ES256', kid: 'ec', jwk: PUBLIC_KEYS[3] }, ecdsa('sha256', p384)],
  ]
  for (const [header, signs] of trusted) {
    const { length } = signs('')
    forged.push(
      [header, () => Buffer.alloc(length)],
      [header, () => Buffer.alloc(length, 255)],
      [header, () => Buffer.alloc(1)],
    )
    // The key itself, under the name of another algorithm.
    for (const [own, signer] of trusted)
      if (own['alg'] !== header['alg']) forged.push([header, signer])
  }
  return forged
}
